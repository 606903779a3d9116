// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The published dispatch algorithms: by position, or by area alone. They know nothing of what moves.
#include <algorithm>
#include <bit>
#include <numeric>
#include <queue>

#include "plan/dispatch.hpp"

namespace tangram {

namespace {

// Chunks from heavy to light; equal ones in sequence order.
std::vector<int> by_descending_area(std::span<const int64_t> areas) {
  std::vector<int> order(areas.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return areas[static_cast<size_t>(a)] > areas[static_cast<size_t>(b)]; });
  return order;
}

// 0 1 .. R-1 R-1 .. 1 0 0 1 and so on.
int zigzag_rank(int64_t position, int cp_size) {
  const int64_t lap = position / cp_size;
  const int at = static_cast<int>(position % cp_size);
  return lap % 2 == 0 ? at : cp_size - 1 - at;
}

// One exchange of single chunks between the heaviest rank and another that lowers the larger of the two loads the most.
// False when there is none.
bool exchange_best(std::span<const int64_t> areas, std::vector<std::vector<int>>& chunks_of,
                   std::vector<int64_t>& load) {
  const size_t heavy = static_cast<size_t>(std::max_element(load.begin(), load.end()) - load.begin());
  const auto area_of = [&](int chunk) { return areas[static_cast<size_t>(chunk)]; };
  int64_t best_load = load[heavy];
  size_t best_rank = heavy;
  size_t best_mine = 0;
  size_t best_other = 0;
  for (size_t other = 0; other < load.size(); ++other) {
    if (other == heavy) continue;
    // Both lists are sorted, so that the best partners of growing chunks move on together.
    const std::vector<int>& theirs = chunks_of[other];
    size_t at = 0;
    for (size_t mine = 0; mine < chunks_of[heavy].size(); ++mine) {
      const int64_t area = area_of(chunks_of[heavy][mine]);
      const auto larger_load = [&](size_t with) {
        const int64_t moved = area - area_of(theirs[with]);
        return std::max(load[heavy] - moved, load[other] + moved);
      };
      while (at + 1 < theirs.size() && larger_load(at + 1) <= larger_load(at)) ++at;
      if (larger_load(at) >= best_load) continue;
      best_load = larger_load(at);
      best_rank = other;
      best_mine = mine;
      best_other = at;
    }
  }
  if (best_rank == heavy) return false;
  int& mine = chunks_of[heavy][best_mine];
  int& other = chunks_of[best_rank][best_other];
  const int64_t moved = area_of(mine) - area_of(other);
  load[heavy] -= moved;
  load[best_rank] += moved;
  std::swap(mine, other);
  for (const size_t rank : {heavy, best_rank}) {
    std::stable_sort(chunks_of[rank].begin(), chunks_of[rank].end(),
                     [&](int a, int b) { return area_of(a) < area_of(b); });
  }
  return true;
}

// Which sums of areas can be reached with how many chunks; sums are rounded to kLevels levels.
class SubsetSums {
 public:
  static constexpr int kLevels = 512;

  SubsetSums(int max_count, int64_t goal)
      : unit_(std::max<int64_t>(1, 2 * goal / kLevels)), rows_(static_cast<size_t>(max_count) + 1) {
    rows_[0].reached[0] = 1;
  }

  void add(int chunk, int64_t area) {
    const int shift = static_cast<int>(std::min<int64_t>((area + unit_ / 2) / unit_, kLevels));
    if (shift >= kLevels) return;
    for (size_t count = rows_.size() - 1; count-- > 0;) extend(rows_[count], rows_[count + 1], shift, chunk, area);
  }

  // The chunks of the full-sized subset whose exact area is nearest to `goal`; empty if there is none.
  std::vector<int> nearest(int64_t goal, std::span<const int64_t> areas) const {
    const Row& last = rows_.back();
    int best = -1;
    for (int level = 0; level < kLevels; ++level) {
      if (!last.has(level)) continue;
      const auto error = [&](int at) { return std::abs(last.area[static_cast<size_t>(at)] - goal); };
      if (best < 0 || error(level) < error(best)) best = level;
    }
    std::vector<int> chunks;
    if (best < 0) return chunks;
    for (size_t count = rows_.size() - 1; count > 0; --count) {
      const int chunk = rows_[count].chunk[static_cast<size_t>(best)];
      chunks.push_back(chunk);
      best -= static_cast<int>((areas[static_cast<size_t>(chunk)] + unit_ / 2) / unit_);
    }
    return chunks;
  }

 private:
  static constexpr int kWords = kLevels / 64;
  // For each level the chunk that reached it first. Its own subset was reached by earlier chunks, so following the
  // chunks back never meets one twice.
  struct Row {
    uint64_t reached[kWords] = {};
    int chunk[kLevels];
    int64_t area[kLevels];

    bool has(int level) const { return (reached[level / 64] >> (level % 64) & 1) != 0; }
  };

  static void extend(const Row& from, Row& to, int shift, int chunk, int64_t area) {
    const int words = shift / 64;
    const int bits = shift % 64;
    for (int w = kWords - 1; w >= words; --w) {
      uint64_t fresh = from.reached[w - words] << bits;
      if (bits > 0 && w > words) fresh |= from.reached[w - words - 1] >> (64 - bits);
      fresh &= ~to.reached[w];
      to.reached[w] |= fresh;
      for (; fresh != 0; fresh &= fresh - 1) {
        const int level = w * 64 + std::countr_zero(fresh);
        to.chunk[level] = chunk;
        to.area[level] = from.area[level - shift] + area;
      }
    }
  }

  int64_t unit_;
  std::vector<Row> rows_;
};

}  // namespace

std::vector<int> dispatch_sequential(int64_t num_chunks, int cp_size) {
  const int64_t per_rank = num_chunks / cp_size;
  std::vector<int> ranks(static_cast<size_t>(num_chunks));
  for (int64_t c = 0; c < num_chunks; ++c) ranks[static_cast<size_t>(c)] = static_cast<int>(c / per_rank);
  return ranks;
}

std::vector<int> dispatch_zigzag(int64_t num_chunks, int cp_size) {
  std::vector<int> ranks(static_cast<size_t>(num_chunks));
  for (int64_t c = 0; c < num_chunks; ++c) ranks[static_cast<size_t>(c)] = zigzag_rank(c, cp_size);
  return ranks;
}

std::vector<int> dispatch_min_heap(std::span<const int64_t> areas, int cp_size) {
  struct Load {
    int64_t area;
    int rank;
    bool operator>(const Load& other) const { return area != other.area ? area > other.area : rank > other.rank; }
  };
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  for (int rank = 0; rank < cp_size; ++rank) lightest.push({0, rank});
  const int64_t per_rank = static_cast<int64_t>(areas.size()) / cp_size;
  std::vector<int64_t> num_assigned(static_cast<size_t>(cp_size));
  std::vector<int> ranks(areas.size());
  for (const int chunk : by_descending_area(areas)) {
    Load load = lightest.top();
    lightest.pop();
    ranks[static_cast<size_t>(chunk)] = load.rank;
    load.area += areas[static_cast<size_t>(chunk)];
    // A full rank leaves the heap: every rank holds equally many rows.
    if (++num_assigned[static_cast<size_t>(load.rank)] < per_rank) lightest.push(load);
  }
  return ranks;
}

std::vector<int> dispatch_sorted_sequential(std::span<const int64_t> areas, int cp_size) {
  const std::vector<int> order = by_descending_area(areas);
  std::vector<int> ranks(areas.size());
  for (size_t i = 0; i < order.size(); ++i) {
    ranks[static_cast<size_t>(order[i])] = zigzag_rank(static_cast<int64_t>(i), cp_size);
  }
  return ranks;
}

std::vector<int> dispatch_lower_bound(std::span<const int64_t> areas, int cp_size) {
  std::vector<int> ranks = dispatch_min_heap(areas, cp_size);
  std::vector<std::vector<int>> chunks_of(static_cast<size_t>(cp_size));
  std::vector<int64_t> load(static_cast<size_t>(cp_size));
  const std::vector<int> order = by_descending_area(areas);
  for (size_t i = order.size(); i-- > 0;) {
    const size_t rank = static_cast<size_t>(ranks[static_cast<size_t>(order[i])]);
    chunks_of[rank].push_back(order[i]);
    load[rank] += areas[static_cast<size_t>(order[i])];
  }
  // No dispatch does with less than the mean; the rank of the heaviest chunk has at least the lightest ones besides.
  const int64_t total = std::accumulate(areas.begin(), areas.end(), int64_t{0});
  int64_t heaviest = areas[static_cast<size_t>(order[0])];
  for (size_t i = 1; i < areas.size() / load.size(); ++i)
    heaviest += areas[static_cast<size_t>(order[order.size() - i])];
  const int64_t bound = std::max((total + cp_size - 1) / cp_size, heaviest);
  const int max_steps = 16 * cp_size;
  for (int step = 0; step < max_steps && *std::max_element(load.begin(), load.end()) > bound; ++step) {
    if (!exchange_best(areas, chunks_of, load)) break;
  }
  for (size_t rank = 0; rank < chunks_of.size(); ++rank) {
    for (const int chunk : chunks_of[rank]) ranks[static_cast<size_t>(chunk)] = static_cast<int>(rank);
  }
  return ranks;
}

std::vector<int> dispatch_dynamic_programming(std::span<const int64_t> areas, int cp_size) {
  const int per_rank = static_cast<int>(areas.size()) / cp_size;
  std::vector<int> ranks(areas.size(), -1);
  std::vector<int> left = by_descending_area(areas);
  for (int rank = 0; rank < cp_size && !left.empty(); ++rank) {
    int64_t sum = 0;
    for (const int chunk : left) sum += areas[static_cast<size_t>(chunk)];
    const int64_t goal = sum / (cp_size - rank);
    SubsetSums sums(per_rank, goal);
    for (const int chunk : left) sums.add(chunk, areas[static_cast<size_t>(chunk)]);
    std::vector<int> chosen = sums.nearest(goal, areas);
    // Where every subset is off the scale (one chunk heavier than two means), heavy and light chunks in turn.
    for (int n = 0; static_cast<int>(chosen.size()) < per_rank; ++n) {
      const size_t at = static_cast<size_t>(n / 2);
      chosen.push_back(n % 2 == 0 ? left[at] : left[left.size() - 1 - at]);
    }
    for (const int chunk : chosen) ranks[static_cast<size_t>(chunk)] = rank;
    std::erase_if(left, [&](int chunk) { return ranks[static_cast<size_t>(chunk)] >= 0; });
  }
  return ranks;
}

std::vector<int> dispatch_batch_topp(std::span<const int64_t> areas, int cp_size) {
  constexpr int kTopShare = 4;  // one in four of the ranks that wait may be chosen for its neighbours
  const std::vector<int> order = by_descending_area(areas);
  const size_t num_ranks = static_cast<size_t>(cp_size);
  std::vector<int64_t> load(num_ranks);
  std::vector<int> ranks(areas.size(), -1);
  std::vector<int> waiting;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i % num_ranks == 0) {
      // A new batch: every rank gets one chunk of it, the lightest the heaviest.
      waiting.resize(num_ranks);
      std::iota(waiting.begin(), waiting.end(), 0);
      std::stable_sort(waiting.begin(), waiting.end(),
                       [&](int a, int b) { return load[static_cast<size_t>(a)] < load[static_cast<size_t>(b)]; });
    }
    const size_t chunk = static_cast<size_t>(order[i]);
    const size_t top = (waiting.size() + kTopShare - 1) / kTopShare;
    size_t chosen = 0;
    for (size_t w = 0; w < top; ++w) {
      const bool before = chunk > 0 && ranks[chunk - 1] == waiting[w];
      const bool after = chunk + 1 < ranks.size() && ranks[chunk + 1] == waiting[w];
      if (!before && !after) continue;
      chosen = w;
      break;
    }
    ranks[chunk] = waiting[chosen];
    load[static_cast<size_t>(waiting[chosen])] += areas[chunk];
    waiting.erase(waiting.begin() + static_cast<int64_t>(chosen));
  }
  return ranks;
}

std::vector<int> dispatch_random(int64_t num_chunks, int cp_size, uint64_t seed) {
  std::vector<int> ranks = dispatch_sequential(num_chunks, cp_size);
  // Fisher and Yates, with splitmix64 (Steele, Lea and Flood, 2014): the same on every machine, unlike std::shuffle.
  uint64_t state = seed;
  for (size_t i = ranks.size(); i > 1; --i) {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    std::swap(ranks[i - 1], ranks[(z ^ (z >> 31)) % i]);
  }
  return ranks;
}

}  // namespace tangram
