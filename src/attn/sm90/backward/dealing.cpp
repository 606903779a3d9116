// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/backward/dealing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>

namespace tangram::sm90::backward {
namespace {

// In steps: what an item costs beside its steps, and a piece for joining one other.
constexpr double kItemCost = 2;
constexpr double kJoinCost = 1.5;

/// Steps until the last multiprocessor is done, when each takes the next item as soon as it is free. Pieces of an item
/// that are dealt together end together, and slow each other down when they join.
double makespan(const Extents& extents, const AttnShape& shape, int num_sms, Dealing how) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < num_sms; ++i) free_at.push(0);
  const int heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
  const double joins = how.pieces == 1 ? 0 : how.by_head ? 1 : 1 + 0.2 * (how.pieces - 2);
  double end = 0;
  deal(extents, shape.num_heads_kv, how, [&](size_t i, int, int) {
    const double done =
        free_at.top() + static_cast<double>(extents.of_keys[i].count * heads) + kItemCost + joins * kJoinCost;
    free_at.pop();
    free_at.push(done);
    end = std::max(end, done);
  });
  return end;
}

/// Where items that meet have unequal lengths, the multiprocessors drift apart over the query heads of an item, and
/// with them their queries and dq out of the L2 cache. Fitted to measurements of 16 dealings of 28 masks
/// (docs/design/backward_sm90.md, "Dealing").
double cache_penalty(const Extents& extents, double spread, const AttnShape& shape, Dealing how) {
  const double uneven = std::clamp((spread - 0.05) / 0.15, 0.0, 1.0);
  if (how.by_head) {
    // One head in a piece means twice the joins of two. Without drift there is nothing to gain, and the neighbours of a
    // head would wait for each other in deterministic calls.
    const int heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
    return 1 + uneven * (heads == 1 ? 0.03 : 0.02 * (heads - 1)) + std::max(0.0, 1 - 4 * uneven) * 0.03;
  }
  const double bytes = 8.0 * static_cast<double>(shape.seqlen_q) * shape.num_heads_q * shape.head_dim;
  const double too_large = std::clamp(std::log2(bytes / (1 << 27)), 0.0, 1.0);
  const double longest = static_cast<double>(extents.of_keys[extents.longest_first.front()].count);
  const double part = 1 - std::min(1.0, longest * 64 / static_cast<double>(std::max<int64_t>(shape.seqlen_q, 1)));
  const double drift = uneven * (how.pieces == 1 ? 0.25 : 0.03 + 0.3 * part);
  return 1 + too_large * (drift + 0.02 * (how.pieces - 1));
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
  for (int pieces = 1; pieces <= group; ++pieces) {
    if (group % pieces != 0) continue;
    for (const bool by_head : {false, true}) {
      const Dealing how{pieces, by_head};
      const double cost = makespan(extents, shape, num_sms, how) * cache_penalty(extents, spread, shape, how);
      if (cost < best_cost) {
        best = how;
        best_cost = cost;
      }
    }
  }
  return best;
}

std::vector<size_t> order_by_arrival(const Extents& extents, const AttnShape& shape, int num_sms, Dealing how,
                                     const std::vector<double>& arrives) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < num_sms; ++i) free_at.push(0);
  const int heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
  const int copies = how.by_head ? 1 : shape.num_heads_kv * how.pieces;  // of a tile, dealt together
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
