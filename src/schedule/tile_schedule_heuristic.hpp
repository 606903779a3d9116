// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One rule that schedules the work tiles of a backward pass for all masks. It is for lists that a GPU builds
// (builder/), where a simulation would be a walk over all work tiles by one thread. Host and GPU run it alike.
#pragma once

#include <cstdint>

#include "schedule/builder/team.hpp"

namespace tangram::schedule {

/// If many work tiles begin at the same query tile, they would wait for the one whose addition stores. That costs more
/// than zeroing, unless a tile has so few visits.
inline constexpr int64_t kFewVisits = 4;

/// Scattered work tiles see less than half of the query tiles from their first to their last one, as with random
/// blocks. They reach a tile at any time. So many do that a check whether the first has stored, a round trip to the L2
/// cache, would cost more. So sums are zeroed before as where many begin at one tile.
TANGRAM_HOST_DEVICE inline bool is_scattered(int64_t visits, int64_t tiles_between) {
  return 2 * visits < tiles_between;
}
TANGRAM_HOST_DEVICE inline bool zeroes_sums(bool same_begin, bool scattered, int64_t visits, int64_t num_q_tiles) {
  return (same_begin || scattered) && visits > kFewVisits * num_q_tiles;
}

/// Whether a group of work tiles is unequal, as for a causal mask. `longest` visits more than one and a half times the
/// mean number of query tiles of the `work_tiles` that visit any, `visits` in all. It is scheduled in sections of as
/// many query heads as the L2 cache holds what belongs to them (ScheduleCandidate::cached).
TANGRAM_HOST_DEVICE inline bool is_nested(int64_t longest, int64_t work_tiles, int64_t visits) {
  return 2 * longest * work_tiles > 3 * visits;
}

/// Head splits of all K/V heads, in the order of the heads, in sections of this many. Sections follow each other; in a
/// section the longest work tiles come first. No pieces: scheduled otherwise.
struct Sections {
  int32_t head_splits = 0;  ///< of a work tile
  int32_t heads_in_l2 = 0;
};

/// All other masks use one rule that suits packed documents. Groups of work tiles that share queries follow each other,
/// head by head, in splits of at most a fifth of a multiprocessor's work.
TANGRAM_HOST_DEVICE inline int32_t most_steps_by_rule(double visits, int num_heads_q, int multiprocessors) {
  constexpr double kMostShare = 0.2;
  const double even = visits * num_heads_q / multiprocessors;
  const double share = kMostShare * even;
  return share < 1 ? 1 : share < INT32_MAX ? static_cast<int32_t>(share) : INT32_MAX;
}

/// Whether work tiles are cut: not where a K/V head has 5, 7 or another prime of query heads, whose pieces are single
/// heads.
TANGRAM_HOST_DEVICE constexpr bool is_cut_by_rule(int group) {
  for (int divisor = 2; divisor * divisor <= group; ++divisor) {
    if (group % divisor == 0) return true;
  }
  return group <= 3;
}

/// Number of head splits of a work tile of `steps`, like head_splits_for for groups that are cut.
TANGRAM_HOST_DEVICE inline int pieces_by_rule(int64_t max_steps, int64_t steps, int group) {
  int head_splits = 1;
  if (!is_cut_by_rule(group)) return head_splits;
  while (head_splits < group && (group % head_splits != 0 || steps > max_steps * head_splits)) ++head_splits;
  return head_splits;
}

/// Several groups of work tiles in deterministic calls are not split, with this many K/V heads at a time
/// (kScheduleCandidates). Work tiles of one head that begin together wait for each other at each tile, which short ones
/// of few query heads cannot afford.
TANGRAM_HOST_DEVICE constexpr int32_t heads_in_turn(int num_heads_q, int num_heads_kv) {
  return num_heads_q < 4 * num_heads_kv || num_heads_kv == 1 ? num_heads_kv : 2;
}

/// Scattered work tiles of smaller heads walk all query heads of a tile, one after the other (choose_scattered).
TANGRAM_HOST_DEVICE constexpr bool scatters_heads_inside(int head_dim) { return head_dim <= 64; }

/// Numbers of equal head splits of scattered work tiles: at least, and at most if they end unevenly or are unequal.
struct ScatteredPieces {
  int32_t fewest = 1;
  int32_t most = 1;
};

/// Head splits of scattered work tiles: one for small heads, else two. More while q, dout and dq sums of a split exceed
/// three times the L2 cache: multiprocessors work at any of its tiles, so much comes from memory. If memory is slower
/// than an H200's (an H100's), unequal work tiles or those scheduled by length show it with few rows already. Then
/// smaller splits are worth their join (docs/devlog/2026-11-26-block-masks.md).
TANGRAM_HOST_DEVICE constexpr ScatteredPieces scattered_pieces(int64_t rows, int head_dim, int group, int64_t l2_bytes,
                                                               bool slow_memory) {
  constexpr int kMost = 8;
  int head_splits = scatters_heads_inside(head_dim) ? 1 : 2;
  while (group % (2 * head_splits) == 0 && 8 * rows * head_dim * (group / head_splits) > 3 * l2_bytes) head_splits *= 2;
  int most = head_splits;
  while (slow_memory && !scatters_heads_inside(head_dim) && most < kMost && group % (2 * most) == 0) most *= 2;
  return {head_splits, most};
}

/// Whether one of `work_tiles`, which visit `visits` tiles in all, visits more than twice their mean.
TANGRAM_HOST_DEVICE constexpr bool is_long(int64_t count, int64_t work_tiles, int64_t visits) {
  return count * work_tiles > 2 * visits;
}

/// Whether more than one in sixteen work tiles is long, as of causal blocks. Of blocks chosen evenly none is, and one
/// of those among which there is a block that all queries see.
TANGRAM_HOST_DEVICE constexpr bool are_unequal(int64_t long_work_tiles, int64_t work_tiles) {
  return 16 * long_work_tiles > work_tiles;
}

/// Scattered work tiles are scheduled head by head, as choose_scattered prefers, if the longest split takes at most an
/// eighth of a multiprocessor's work (a quarter with heads inside). Otherwise they would end unevenly.
TANGRAM_HOST_DEVICE inline Sections scattered_sections(int64_t longest, int64_t long_work_tiles, int64_t work_tiles,
                                                       int64_t visits, int num_heads_q, int group, int multiprocessors,
                                                       ScatteredPieces of, bool heads_innermost) {
  const int64_t parts = heads_innermost ? 4 : 8, all = visits * num_heads_q;
  const bool unequal = are_unequal(long_work_tiles, work_tiles);
  // Few long ones are no reason to cut all.
  const int most = long_work_tiles > 0 && !unequal ? of.fewest : of.most;
  for (int head_splits = unequal ? of.most : of.fewest; head_splits <= most; head_splits *= 2) {
    if (group % head_splits != 0) break;
    if (parts * longest * (group / head_splits) * multiprocessors <= all) return {head_splits, 1};
  }
  return {};
}

}  // namespace tangram::schedule
