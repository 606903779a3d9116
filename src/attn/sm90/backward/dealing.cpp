// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/backward/dealing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace tangram::sm90::backward {
namespace {

// In steps: what an item costs beside its steps, and a piece for joining one other.
constexpr double kItemCost = 2;
constexpr double kJoinCost = 1.5;
// What the sections dealt together may touch, of 50 MB of L2 cache; how finely the end is cut, in items a
// multiprocessor.
constexpr double kCacheBytes = 1 << 27;
constexpr int kMaxTailItems = 8;

/// Multiprocessors of which each takes the next item as soon as it is free.
class Machine {
 public:
  explicit Machine(int num_sms) : free_at_(static_cast<size_t>(num_sms), 0.0) {}

  void run(double steps) {
    std::pop_heap(free_at_.begin(), free_at_.end(), std::greater<>());
    free_at_.back() += steps;
    end_ = std::max(end_, free_at_.back());
    std::push_heap(free_at_.begin(), free_at_.end(), std::greater<>());
  }
  double end() const { return end_; }

 private:
  std::vector<double> free_at_;  // a heap, the first one free in front
  double end_ = 0;
};

/// Steps of one of `pieces` of an item. Pieces that are dealt together end together, and slow each other down when they
/// join.
double steps_of(const Extent& item, const AttnShape& shape, int pieces, bool together) {
  const double joins = pieces == 1 ? 0 : together ? 1 + 0.2 * (pieces - 2) : 1;
  return static_cast<double>(item.count * (shape.num_heads_q / shape.num_heads_kv / pieces)) + kItemCost +
         joins * kJoinCost;
}

/// Steps until the last multiprocessor is done, of a dealing without tail.
double makespan(const Extents& extents, const AttnShape& shape, int num_sms, const Dealing& how) {
  Machine machine(num_sms);
  deal(extents, shape.num_heads_kv, how, [&](size_t i, int, int, int) {
    machine.run(steps_of(extents.of_keys[i], shape, how.pieces, how.together == 0));
  });
  return machine.end();
}

/// Queries, dout and the sums of dq of a query head.
double head_bytes(const AttnShape& shape) { return 8.0 * static_cast<double>(shape.seqlen_q) * shape.head_dim; }

/// Queries that the longest item visits, in whole tiles.
double longest_rows(const Extents& extents) {
  return 64.0 * static_cast<double>(extents.of_keys[extents.longest_first.front()].count);
}

/// As head_bytes, of the queries that the longest item visits.
double item_bytes(const Extents& extents, const AttnShape& shape) {
  return 8.0 * longest_rows(extents) * shape.head_dim;
}

/// Whether even equal items are long enough to fall out of step, and their queries out of the cache.
bool drifts_slowly(const Extents& extents, const AttnShape& shape) {
  return item_bytes(extents, shape) * shape.num_heads_q >= 4 * kCacheBytes;
}

/// Where items that meet have unequal lengths, the multiprocessors drift apart over the query heads of an item, and
/// with them their queries and dq out of the L2 cache. Fitted to measurements of 16 dealings of 28 masks
/// (docs/design/backward_sm90.md, "Dealing").
double cache_penalty(const Extents& extents, double spread, const AttnShape& shape, const Dealing& how) {
  const double uneven = std::clamp((spread - 0.05) / 0.15, 0.0, 1.0);
  const int heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
  if (how.together == 1) {
    // One head in a piece means twice the joins of two. Without drift there is nothing to gain, and the neighbours of a
    // head would wait for each other in deterministic calls.
    const double too_large = std::clamp(std::log2(item_bytes(extents, shape) * heads / (kCacheBytes / 4)), 0.0, 1.0);
    const double several = 0.012 + 0.0035 * heads + 0.001 * (heads * heads - 4) * too_large;
    return 1 + uneven * (heads == 1 ? 0.03 : several) + std::max(0.0, 1 - 4 * uneven) * 0.03;
  }
  if (how.together > 1) return 1 + uneven * 0.02 * (heads * how.together - 1);
  const double too_large = std::clamp(std::log2(head_bytes(shape) * shape.num_heads_q / kCacheBytes), 0.0, 1.0);
  const double longest = longest_rows(extents) / static_cast<double>(std::max<int64_t>(shape.seqlen_q, 1));
  const double drift = uneven * (how.pieces == 1 ? 0.25 : 0.03 + 0.3 * (1 - std::min(1.0, longest)));
  // Equal items drift apart, too, when they are long.
  const double slow_drift = drifts_slowly(extents, shape) ? 0.02 : 0;
  return 1 + too_large * (drift + slow_drift + 0.02 * (how.pieces - 1));
}

/// Of a dealing one head after the other: the end dealt as one section, two or as many as the cache holds, so that the
/// last items to begin are short ones; and how many steps that takes.
std::pair<Dealing, double> with_joint_end(const Dealing& how, const Extents& extents, const AttnShape& shape,
                                          int num_sms) {
  const double sections = shape.num_heads_kv * how.pieces;
  const double bytes = head_bytes(shape) * shape.num_heads_q / sections;
  const double most = std::clamp(kCacheBytes / bytes, 2.0, std::max(2.0, sections));
  std::pair<Dealing, double> best{how, makespan(extents, shape, num_sms, how)};
  Dealing joint = how;
  for (joint.joint = 2; joint.joint <= most; joint.joint *= 2) {
    const double steps = makespan(extents, shape, num_sms, joint);
    if (steps < 0.995 * best.second) best = {joint, steps};
  }
  return best;
}

/// The same with the last tiles in smaller pieces, and how many steps that takes. Equal items on 132 multiprocessors
/// leave up to a whole wave's share of them without work at the end.
std::pair<Dealing, double> with_cut_end(const Dealing& how, const Extents& extents, const AttnShape& shape,
                                        int num_sms) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  const std::vector<size_t>& order = extents.longest_first;
  const auto empty = static_cast<int>(
      std::count_if(extents.of_keys.begin(), extents.of_keys.end(), [](const Extent& e) { return e.count == 0; }));
  const int tiles = static_cast<int>(order.size()) - empty;
  // Pieces of items that see most queries share those of one head, if pieces of other heads do not come in between.
  const int together = longest_rows(extents) * 2 > static_cast<double>(shape.seqlen_q) ? 1 : 0;
  const auto run = [&](Machine& machine, int first, int last, int pieces, bool all_together) {
    for (int at = first; at < last; ++at) {
      const double steps = steps_of(extents.of_keys[order[static_cast<size_t>(at)]], shape, pieces, all_together);
      for (int i = 0; i < shape.num_heads_kv * pieces; ++i) machine.run(steps);
    }
  };
  // Small pieces of all heads at once share fewer queries: not too many of them.
  const auto most = [&](int pieces) {
    return std::min(tiles * how.pieces / pieces, kMaxTailItems * num_sms / shape.num_heads_kv / pieces);
  };
  const int begin = tiles - most(how.pieces * 2);  // what comes before is dealt alike in any case
  Machine before(num_sms);
  run(before, 0, begin, how.pieces, true);
  Machine uncut = before;
  run(uncut, begin, tiles, how.pieces, true);
  std::pair<Dealing, double> best{how, uncut.end()};
  for (int pieces = how.pieces * 2; pieces <= group; pieces *= 2) {
    if (group % pieces != 0) continue;
    for (int cut = 1; cut <= most(pieces); cut += (cut + 3) / 4) {
      Machine machine = before;
      run(machine, begin, tiles - cut, how.pieces, true);
      run(machine, tiles - cut, tiles, pieces, together == 0);
      if (machine.end() >= 0.995 * best.second) continue;
      best.first.tail_tiles = cut + empty;
      best.first.tail_pieces = pieces;
      best.first.tail_together = together;
      best.second = machine.end();
    }
  }
  return best;
}

}  // namespace

Extents measure_extents(const TileList& tiles, const std::vector<RunTiles>& run_tiles) {
  Extents result;
  result.item.resize(tiles.items.size());
  std::iota(result.item.begin(), result.item.end(), size_t{0});
  std::sort(result.item.begin(), result.item.end(),
            [&](size_t a, size_t b) { return tiles.items[a].row_begin < tiles.items[b].row_begin; });
  for (const size_t i : result.item) {
    const TileItem& item = tiles.items[i];
    Extent extent;
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
      const RunTiles& run = run_tiles[static_cast<size_t>(r)];
      extent.first = r == item.run_begin ? run.first : std::min<int64_t>(extent.first, run.first);
      extent.end = std::max<int64_t>(extent.end, run.end);
      extent.count += run.end - run.first;
    }
    result.of_keys.push_back(extent);
  }
  result.longest_first.resize(result.item.size());
  std::iota(result.longest_first.begin(), result.longest_first.end(), size_t{0});
  std::stable_sort(result.longest_first.begin(), result.longest_first.end(),
                   [&](size_t a, size_t b) { return result.of_keys[a].count > result.of_keys[b].count; });
  return result;
}

double length_spread(const TileList& tiles, const std::vector<RunTiles>& run_tiles, int64_t num_q_tiles) {
  constexpr int64_t kSamples = 64;
  const int64_t samples = std::min(kSamples, num_q_tiles);
  double deviation = 0, sum = 0;
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t tile = (2 * s + 1) * num_q_tiles / (2 * samples);
    std::vector<int64_t> lengths;
    for (const TileItem& item : tiles.items) {
      int64_t length = 0;
      bool meets = false;
      for (int32_t r = item.run_begin; r < item.run_end; ++r) {
        const RunTiles& run = run_tiles[static_cast<size_t>(r)];
        meets |= run.first <= tile && tile < run.end;
        length += run.end - run.first;
      }
      if (meets) lengths.push_back(length);
    }
    if (lengths.empty()) continue;
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
    std::nth_element(lengths.begin(), middle, lengths.end());
    const int64_t median = *middle;
    double squares = 0;
    for (const int64_t length : lengths) {
      squares += static_cast<double>((length - median) * (length - median));
      sum += static_cast<double>(length);
    }
    deviation += std::sqrt(squares * static_cast<double>(lengths.size()));
  }
  // For causal masks 0.85 of the root mean square is the mean deviation, to which the penalties were fitted.
  return sum == 0 ? 0 : 0.85 * deviation / sum;
}

Dealing choose_dealing(const Extents& extents, double spread, const AttnShape& shape, int num_sms) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  Dealing best;
  double best_cost = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Dealing& how, double steps) {
    const double cost = steps * cache_penalty(extents, spread, shape, how);
    if (cost >= best_cost) return;
    best = how;
    best_cost = cost;
  };
  const auto consider_as_is = [&](const Dealing& how) { consider(how, makespan(extents, shape, num_sms, how)); };
  for (int pieces = 1; pieces <= group; ++pieces) {
    if (group % pieces != 0) continue;
    for (const int together : {0, 1}) consider_as_is({.pieces = pieces, .together = together});
  }
  if (drifts_slowly(extents, shape) && shape.num_heads_kv > 2) consider_as_is({.together = 2});
  const Dealing even = best;
  const auto [cut, steps] = with_cut_end({.together = even.together == 2 ? 2 : 0}, extents, shape, num_sms);
  consider(cut, steps);
  for (const int pieces : {even.pieces, even.pieces / 2}) {
    if (even.together != 1 || pieces == 0 || group % pieces != 0) continue;
    const auto [joint, joint_steps] = with_joint_end({.pieces = pieces, .together = 1}, extents, shape, num_sms);
    consider(joint, joint_steps);
  }
  return best;
}

std::vector<size_t> order_by_arrival(const Extents& extents, const AttnShape& shape, int num_sms, Dealing how,
                                     const std::vector<double>& arrives) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < num_sms; ++i) free_at.push(0);
  const int heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
  const int copies = how.together == 0 ? shape.num_heads_kv * how.pieces : how.together;  // of a tile, dealt together
  std::vector<size_t> waiting = extents.longest_first, order;
  while (!waiting.empty()) {
    const double now = free_at.top();
    auto next = std::find_if(waiting.begin(), waiting.end(), [&](size_t i) { return arrives[i] <= now; });
    if (next == waiting.end()) {
      next =
          std::min_element(waiting.begin(), waiting.end(), [&](size_t a, size_t b) { return arrives[a] < arrives[b]; });
    }
    const size_t tile = *next;
    waiting.erase(next);
    order.push_back(tile);
    for (int i = 0; i < copies; ++i) {
      const double begin = std::max(free_at.top(), arrives[tile]);
      free_at.pop();
      free_at.push(begin + static_cast<double>(extents.of_keys[tile].count * heads) + kItemCost);
    }
  }
  return order;
}

Direction choose_direction(const Extents& extents) {
  int64_t ascending = 0, descending = 0;  // steps that a neighbour's item is late
  int64_t pairs = 0, same_first = 0, same_end = 0;
  for (size_t i = 0; i + 1 < extents.of_keys.size(); ++i) {
    const Extent *before = &extents.of_keys[i], *after = before + 1;
    if (std::min(before->end, after->end) <= std::max(before->first, after->first)) continue;
    if (after->count > before->count) std::swap(before, after);  // the longer one is dealt first
    ascending += std::max<int64_t>(0, after->first - before->first);
    descending += std::max<int64_t>(0, before->end - after->end);
    ++pairs;
    same_first += before->first == after->first;
    same_end += before->end == after->end;
  }
  const bool down = descending <= ascending;
  return {down, (down ? same_end : same_first) * 2 > pairs};
}

}  // namespace tangram::sm90::backward
