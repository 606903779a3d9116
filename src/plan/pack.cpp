// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Three steps, each on what the one before left over:
// 1. While some block is too heavy or too long for one rank, one rank is closed. It gets a part from the heavy end of
//    that block and rows from the light end of all others, in the proportion that gives exactly the mean area.
// 2. Blocks that are not small go whole to the least loaded rank that has room.
// 3. The rest fills every rank up to its number of rows: again from both ends, heavy and light, so that area fits too.
#include "plan/pack.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/require.hpp"
#include "plan/chunk_areas.hpp"

namespace tangram {

namespace {

class Packer {
 public:
  Packer(const PackProblem& problem, const PackSetting& setting)
      : problem_(problem),
        setting_(setting),
        ranks_(problem.areas.size(), -1),
        chunks_of_(static_cast<size_t>(problem.cp_size)),
        area_of_(static_cast<size_t>(problem.cp_size)),
        items_(problem.blocks) {}

  std::vector<int> run() {
    close_ranks_for_large_blocks();
    place_whole_blocks();
    fill();
    return std::move(ranks_);
  }

 private:
  double density(const ChunkRun& item) const {
    return static_cast<double>(problem_.area(item)) / std::max(1, item.size());
  }
  // Whether the end of the item sees more than its beginning; it is then taken from the end.
  bool heavy_at_end(const ChunkRun& item) const {
    const int middle = item.begin + item.size() / 2;
    return problem_.area({middle, item.end}) >= problem_.area({item.begin, middle});
  }
  int num_open() const { return problem_.cp_size - num_closed_; }
  int64_t remaining_area() const {
    int64_t sum = 0;
    for (const ChunkRun& item : items_) sum += problem_.area(item);
    return sum;
  }

  void assign(const ChunkRun& part, int rank) {
    for (int c = part.begin; c < part.end; ++c) ranks_[static_cast<size_t>(c)] = rank;
    chunks_of_[static_cast<size_t>(rank)] += part.size();
    area_of_[static_cast<size_t>(rank)] += problem_.area(part);
  }

  // Takes `count` chunks from the heavy or light end of an item.
  ChunkRun take(ChunkRun& item, int count, bool heavy) const {
    const bool from_end = heavy_at_end(item) == heavy;
    ChunkRun part = item;
    if (from_end) {
      part.begin = item.end - count;
      item.end = part.begin;
    } else {
      part.end = item.begin + count;
      item.begin = part.end;
    }
    return part;
  }

  void sort_by_density() {
    sort_items([&](const ChunkRun& item) { return density(item); });
  }

  // From high to low; equal ones in sequence order.
  template <class Key>
  void sort_items(const Key& key) {
    std::vector<std::pair<double, ChunkRun>> keyed;
    keyed.reserve(items_.size());
    for (const ChunkRun& item : items_) keyed.push_back({key(item), item});
    std::sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second.begin < b.second.begin;
    });
    for (size_t i = 0; i < items_.size(); ++i) items_[i] = keyed[i].second;
  }

  // Area of the `count` last chunks of the items in order, skipping the item `skip`.
  int64_t light_area(int count, size_t skip) const {
    int64_t area = 0;
    for (size_t i = items_.size(); i-- > 0 && count > 0;) {
      if (i == skip) continue;
      ChunkRun item = items_[i];
      const int part = std::min(count, item.size());
      area += problem_.area(take(item, part, false));
      count -= part;
    }
    return area;
  }

  void close_ranks_for_large_blocks() {
    sort_by_density();
    const int per_rank = problem_.per_rank();
    while (num_open() > 1) {
      const int64_t goal = remaining_area() / num_open();
      size_t large = items_.size();
      for (size_t i = 0; i < items_.size() && large == items_.size(); ++i) {
        // Light blocks fit unless they are too long; only few are heavy enough to look closer.
        if (items_[i].size() <= per_rank && problem_.area(items_[i]) <= goal / 2) continue;
        if (items_[i].size() > per_rank ||
            problem_.area(items_[i]) + light_area(per_rank - items_[i].size(), i) > goal + goal / 256) {
          large = i;
        }
      }
      if (large == items_.size()) return;
      const auto first = items_.begin();
      std::rotate(first, first + static_cast<int64_t>(large), first + static_cast<int64_t>(large) + 1);
      assign_from_both_ends(num_closed_, per_rank, goal);
      ++num_closed_;
      // Only the blocks that were cut have a new density.
      if (items_.size() > 1) {
        reinsert(items_.size() - 1);
        reinsert(0);
      }
    }
  }

  // Moves one item to where it belongs among the others, which are sorted by density.
  void reinsert(size_t index) {
    const ChunkRun item = items_[index];
    items_.erase(items_.begin() + static_cast<int64_t>(index));
    const auto denser = [&](const ChunkRun& other, double d) { return density(other) >= d; };
    items_.insert(std::lower_bound(items_.begin(), items_.end(), density(item), denser), item);
  }

  void place_whole_blocks() {
    std::vector<ChunkRun> filling;
    sort_items([&](const ChunkRun& item) { return static_cast<double>(problem_.area(item)); });
    const int64_t goal = num_open() > 0 ? remaining_area() / num_open() : 0;
    for (const ChunkRun& item : items_) {
      int best = -1;
      if (item.size() >= setting_.min_whole) {
        for (int r = num_closed_; r < problem_.cp_size; ++r) {
          const size_t rank = static_cast<size_t>(r);
          if (chunks_of_[rank] + item.size() > problem_.per_rank()) continue;
          if (area_of_[rank] + problem_.area(item) > goal) continue;
          if (best < 0 || area_of_[rank] < area_of_[static_cast<size_t>(best)]) best = r;
        }
      }
      if (best < 0) {
        filling.push_back(item);
      } else {
        assign(item, best);
      }
    }
    items_ = std::move(filling);
  }

  void fill() {
    // What sees nothing is as light as it gets; the logarithm needs a floor.
    const auto level = [&](const ChunkRun& item) {
      const double d = std::max(1.0, density(item));
      if (setting_.density_step <= 0) return 0.0;
      if (setting_.density_step <= 1) return d;
      return std::floor(std::log(d) / std::log(setting_.density_step));
    };
    sort_items([&](const ChunkRun& item) { return level(item); });
    std::vector<int> open(static_cast<size_t>(num_open()));
    std::iota(open.begin(), open.end(), num_closed_);
    const int64_t goal =
        std::accumulate(area_of_.begin() + num_closed_, area_of_.end(), remaining_area()) / std::max(1, num_open());
    const auto needed_density = [&](int rank) {
      const int chunks = problem_.per_rank() - chunks_of_[static_cast<size_t>(rank)];
      return static_cast<double>(goal - area_of_[static_cast<size_t>(rank)]) / std::max(1, chunks);
    };
    // The ranks with the most unusual wishes choose first.
    double mean = 0;
    for (const ChunkRun& item : items_) mean += density(item) * item.size();
    int chunks = 0;
    for (const ChunkRun& item : items_) chunks += item.size();
    mean /= std::max(1, chunks);
    std::stable_sort(open.begin(), open.end(), [&](int a, int b) {
      return std::abs(needed_density(a) - mean) > std::abs(needed_density(b) - mean);
    });
    for (const int rank : open) {
      assign_from_both_ends(rank, problem_.per_rank() - chunks_of_[static_cast<size_t>(rank)],
                            goal - area_of_[static_cast<size_t>(rank)]);
    }
  }

  // Gives the rank `count` chunks, some from the front and the others from the back of the items, with an area close to
  // `goal`.
  void assign_from_both_ends(int rank, int count, int64_t goal) {
    // Areas of the first and of the last n chunks, as take() takes one after the other.
    const auto collect = [&](std::vector<int64_t>& sums, bool heavy) {
      sums.resize(static_cast<size_t>(count) + 1);
      int n = 0;
      int64_t sum = sums[0] = 0;
      for (size_t i = 0; i < items_.size() && n < count; ++i) {
        ChunkRun item = heavy ? items_[i] : items_[items_.size() - 1 - i];
        while (item.size() > 0 && n < count) {
          const int chunk = heavy_at_end(item) == heavy ? --item.end : item.begin++;
          sums[static_cast<size_t>(++n)] = sum += problem_.areas[static_cast<size_t>(chunk)];
        }
      }
      TANGRAM_ASSERT(n == count);
    };
    std::vector<int64_t>&front = front_areas_, &back = back_areas_;
    collect(front, true);
    collect(back, false);
    int best = 0;
    int64_t best_error = -1;
    for (int heavy = 0; heavy <= count; ++heavy) {
      const int64_t area = front[static_cast<size_t>(heavy)] + back[static_cast<size_t>(count - heavy)];
      const int64_t error = std::abs(area - goal);
      if (best_error < 0 || error < best_error) {
        best = heavy;
        best_error = error;
      }
    }
    take_from_front(rank, best);
    take_from_back(rank, count - best);
  }

  void take_from_front(int rank, int count) {
    size_t num_gone = 0;
    while (count > 0) {
      ChunkRun& item = items_[num_gone];
      const int part = std::min(count, item.size());
      assign(take(item, part, true), rank);
      count -= part;
      if (item.size() == 0) ++num_gone;
    }
    items_.erase(items_.begin(), items_.begin() + static_cast<int64_t>(num_gone));
  }

  void take_from_back(int rank, int count) {
    while (count > 0) {
      ChunkRun& item = items_.back();
      const int part = std::min(count, item.size());
      assign(take(item, part, false), rank);
      count -= part;
      if (item.size() == 0) items_.pop_back();
    }
  }

  const PackProblem& problem_;
  const PackSetting& setting_;
  std::vector<int> ranks_;
  std::vector<int> chunks_of_;
  std::vector<int64_t> area_of_;
  std::vector<ChunkRun> items_;                    // what is not assigned
  std::vector<int64_t> front_areas_, back_areas_;  // kept for their memory
  int num_closed_ = 0;
};

// Whether `below` shows more of the document that `above` shows. Block-causal documents have a slice for each block of
// rows, and would otherwise be packed block by block.
bool goes_on(const AttnSlice& above, const AttnSlice& below) {
  if (below.q_range.begin != above.q_range.end) return false;
  const Range last = above.keys_of(above.q_range.end - 1);
  const Range first = below.keys_of(below.q_range.begin);
  return last.begin <= first.begin && first.begin < last.end && last.end <= first.end;
}

}  // namespace

PackProblem make_pack_problem(std::span<const AttnSlice> slices, int64_t chunk_size, int64_t num_chunks, int cp_size) {
  PackProblem problem;
  problem.cp_size = cp_size;
  problem.areas = chunk_areas(slices, chunk_size, num_chunks);
  problem.prefix.resize(problem.areas.size() + 1);
  std::partial_sum(problem.areas.begin(), problem.areas.end(), problem.prefix.begin() + 1);
  Range rows;
  int next = 0;
  const auto close_block = [&](int64_t end_row) {
    const int end = static_cast<int>((end_row + chunk_size - 1) / chunk_size);
    if (end > next) problem.blocks.push_back({next, end});
    next = std::max(next, end);
  };
  for (size_t i = 0; i < slices.size(); ++i) {  // sorted by first row
    const AttnSlice& slice = slices[i];
    if (slice.q_range.begin >= rows.end && (i == 0 || !goes_on(slices[i - 1], slice))) {
      close_block(rows.end);
      rows = slice.q_range;
    } else {
      rows.end = std::max(rows.end, slice.q_range.end);
    }
  }
  close_block(rows.end);
  close_block(num_chunks * chunk_size);
  return problem;
}

std::vector<int> pack(const PackProblem& problem, const PackSetting& setting) { return Packer(problem, setting).run(); }

}  // namespace tangram
