// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/backward/work_list.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>

#include "core/require.hpp"

namespace tangram::sm90::backward {
namespace {

constexpr int64_t kStepRows = kTileShape.block_n;
// In steps: what an item costs beside its steps, and a piece for joining the others.
constexpr int64_t kItemCost = 4;
constexpr int64_t kJoinCost = 4;

int64_t first_tile(const TileRun& run) { return run.k_begin / kStepRows; }
int64_t end_tile(const TileRun& run) { return (run.k_end + kStepRows - 1) / kStepRows; }

/// Query tiles of each tile item, per head.
std::vector<int64_t> tile_counts(const TileList& tiles) {
  std::vector<int64_t> counts;
  for (const TileItem& item : tiles.items) {
    int64_t count = 0;
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
      const TileRun& run = tiles.runs[static_cast<size_t>(r)];
      count += end_tile(run) - first_tile(run);
    }
    counts.push_back(count);
  }
  return counts;
}

/// How the items are cut and dealt: every item in `pieces`; one KV head after the other, piece by piece, or all at
/// once.
struct Dealing {
  int pieces = 1;
  bool by_head = false;
};

/// (tile item, KV head, piece) in the order of dealing. Inside a section longest first, ties in the order of the list.
template <typename Visit>
void deal(const std::vector<int64_t>& counts, const std::vector<size_t>& longest_first, int num_heads_kv, Dealing how,
          const Visit& visit) {
  if (how.by_head) {
    for (int head = 0; head < num_heads_kv; ++head) {
      for (int piece = 0; piece < how.pieces; ++piece) {
        for (const size_t i : longest_first) {
          if (piece == 0 || counts[i] > 0) visit(i, head, piece);
        }
      }
    }
    return;
  }
  for (const size_t i : longest_first) {
    for (int head = 0; head < num_heads_kv; ++head) {
      for (int piece = 0; piece < (counts[i] > 0 ? how.pieces : 1); ++piece) visit(i, head, piece);
    }
  }
}

/// Steps until the last multiprocessor is done, when each takes the next item as soon as it is free.
int64_t makespan(const std::vector<int64_t>& counts, const std::vector<size_t>& order, const AttnShape& shape,
                 int num_sms, Dealing how) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> free_at;
  for (int i = 0; i < num_sms; ++i) free_at.push(0);
  const int64_t heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
  int64_t end = 0;
  deal(counts, order, shape.num_heads_kv, how, [&](size_t i, int, int) {
    const int64_t done = free_at.top() + counts[i] * heads + kItemCost + (how.pieces > 1 ? kJoinCost : 0);
    free_at.pop();
    free_at.push(done);
    end = std::max(end, done);
  });
  return end;
}

/// Where items have unequal lengths, the multiprocessors drift apart over the query heads of an item, and with them
/// their queries and dq out of the L2 cache: measured as about 1.5 % for each head of an item beyond the first. Dealing
/// all heads at once drifts further, about 5 % a doubling beyond 128 MB and piece.
double cache_penalty(const std::vector<int64_t>& sorted_counts, const AttnShape& shape, Dealing how) {
  const int64_t longest = sorted_counts.front(), median = sorted_counts[sorted_counts.size() / 2];
  const bool even = longest <= median + median / 8;
  if (how.by_head && even) return 1.0;
  if (how.by_head) return 1.0 + 0.015 * (shape.num_heads_q / shape.num_heads_kv / how.pieces - 1);
  const double bytes = 8.0 * static_cast<double>(shape.seqlen_q) * shape.num_heads_q * shape.head_dim;
  const double doublings = std::max(0.0, std::log2(bytes / (1 << 27)));
  return 1.0 + (even && how.pieces == 1 ? 0.002 : 0.05 * how.pieces) * doublings;
}

Dealing choose_dealing(const std::vector<int64_t>& counts, const std::vector<size_t>& order, const AttnShape& shape,
                       int num_sms) {
  std::vector<int64_t> sorted;
  for (const size_t i : order) sorted.push_back(counts[i]);
  const int group = shape.num_heads_q / shape.num_heads_kv;
  Dealing best;
  double best_cost = std::numeric_limits<double>::infinity();
  for (int pieces = 1; pieces <= group; ++pieces) {
    if (group % pieces != 0) continue;
    for (const bool by_head : {false, true}) {
      const Dealing how{pieces, by_head};
      const double cost =
          static_cast<double>(makespan(counts, order, shape, num_sms, how)) * cache_penalty(sorted, shape, how);
      if (cost < best_cost) {
        best = how;
        best_cost = cost;
      }
    }
  }
  return best;
}

/// Sets the bits of rows that some slice shows.
void cover(std::vector<uint64_t>& words, const Range& rows) {
  for (int64_t i = rows.begin; i < rows.end;) {
    const int64_t end = std::min(rows.end, (i / 64 + 1) * 64);
    const uint64_t ones = end - i == 64 ? ~uint64_t{0} : ((uint64_t{1} << (end - i)) - 1) << (i % 64);
    words[static_cast<size_t>(i / 64)] |= ones;
    i = end;
  }
}

struct Coverage {
  std::vector<uint64_t> queries, keys;
};

/// Rows past the end of a tensor read as zeros, so that they need no zeroing: their bits are set.
Coverage coverage(std::span<const AttnSlice> slices, const AttnShape& shape) {
  Coverage result;
  result.queries.resize(static_cast<size_t>((shape.seqlen_q + 63) / 64));
  result.keys.resize(static_cast<size_t>((shape.seqlen_k + 63) / 64) + 2);
  cover(result.queries, {shape.seqlen_q, static_cast<int64_t>(result.queries.size()) * 64});
  cover(result.keys, {shape.seqlen_k, static_cast<int64_t>(result.keys.size()) * 64});
  for (const AttnSlice& slice : slices) {
    const AttnSlice trimmed = canonical(slice);
    cover(result.queries, trimmed.q_range);
    cover(result.keys, trimmed.k_range);
  }
  return result;
}

Item make_item(const TileItem& tile, const std::vector<uint64_t>& covered_keys) {
  Item item;
  item.row_begin = tile.row_begin;
  item.row_end = tile.row_end;
  item.run_begin = tile.run_begin;
  item.run_end = tile.run_end;
  for (int word = 0; word < 2; ++word) {  // items begin at multiples of 128
    const uint64_t bits = covered_keys[static_cast<size_t>(tile.row_begin / 64 + word)];
    item.covered[word * 2] = static_cast<uint32_t>(bits);
    item.covered[word * 2 + 1] = static_cast<uint32_t>(bits >> 32);
    if (bits != ~uint64_t{0}) item.flags = kItemZeroRows;
  }
  return item;
}

}  // namespace

WorkList make_work_list(const TileList& tiles, std::span<const AttnSlice> slices, const AttnShape& shape, int num_sms,
                        const LateKeys& late_keys) {
  WorkList work;
  work.runs = tiles.runs;
  work.intervals = tiles.intervals;
  work.num_q_tiles = static_cast<int32_t>((shape.seqlen_q + kStepRows - 1) / kStepRows);
  for (TileRun& run : work.runs) {
    TANGRAM_ASSERT(work.num_turns < std::numeric_limits<int32_t>::max());
    run.reserved = static_cast<int32_t>(work.num_turns);
    work.num_turns += end_tile(run) - first_tile(run);
  }
  const Coverage covered = coverage(slices, shape);
  const bool all_covered =
      std::all_of(covered.queries.begin(), covered.queries.end(), [](uint64_t word) { return word == ~uint64_t{0}; });
  if (!all_covered) work.covered_queries = covered.queries;

  const std::vector<int64_t> counts = tile_counts(tiles);
  std::vector<size_t> order(counts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  if (order.empty()) return work;
  const Dealing how = choose_dealing(counts, order, shape, num_sms);
  std::vector<int> turns;
  for (const TileItem& tile : tiles.items) turns.push_back(late_keys.turn(tile.row_begin, tile.row_end));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return turns[a] < turns[b]; });
  const int group = shape.num_heads_q / shape.num_heads_kv;
  const int heads = group / how.pieces;
  std::vector<int32_t> slab_of(counts.size() * static_cast<size_t>(shape.num_heads_kv));
  deal(counts, order, shape.num_heads_kv, how, [&](size_t i, int head, int piece) {
    Item item = make_item(tiles.items[i], covered.keys);
    item.kv_head = head;
    item.head_begin = head * group + piece * heads;
    item.head_end = item.head_begin + heads;
    item.num_steps = static_cast<int32_t>(counts[i] * heads);
    item.num_pieces = counts[i] > 0 ? how.pieces : 1;
    item.piece = piece;
    int32_t& slab = slab_of[i * static_cast<size_t>(shape.num_heads_kv) + static_cast<size_t>(head)];
    if (item.num_pieces > 1 && piece == 0) slab = work.num_slabs++;
    item.slab = slab;
    work.items.push_back(item);
  });
  return work;
}

std::vector<int32_t> turn_orders(const WorkList& work) {
  std::vector<int32_t> orders(static_cast<size_t>(work.num_turns));
  std::vector<int32_t> added(static_cast<size_t>(work.num_q_tiles));
  // Every head sees the key tiles dealt in the same order: the items of the first one tell for all.
  for (const Item& item : work.items) {
    if (item.head_begin != 0) continue;
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
      const TileRun& run = work.runs[static_cast<size_t>(r)];
      for (int64_t tile = first_tile(run); tile < end_tile(run); ++tile) {
        orders[static_cast<size_t>(run.reserved + tile - first_tile(run))] = added[static_cast<size_t>(tile)]++;
      }
    }
  }
  return orders;
}

}  // namespace tangram::sm90::backward
