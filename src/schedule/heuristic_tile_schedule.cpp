// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/heuristic_tile_schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/tile_schedule_candidates.hpp"
#include "schedule/tile_schedule_heuristic.hpp"

namespace tangram::schedule {
namespace {

constexpr int64_t kKeys = 128;  // of a tile, twice as many as a query tile's rows

}  // namespace

TileSchedule l2_tile_schedule(const AttnShape& shape, const GpuModel& gpu) {
  // The mask is in the GPU's memory: sections are those of a causal one of the shape, which they are for.
  std::vector<Extent> of_keys;
  for (int64_t tile = (std::max<int64_t>(1, shape.seqlen_k) + kKeys - 1) / kKeys; tile > 0; --tile) {
    of_keys.push_back({2 * tile, 0, 2 * tile});
  }
  const Extents causal = make_extents(std::move(of_keys));
  return search_l2_tile_schedule({causal, shape, gpu, {}}).how;
}

TileSchedule heuristic_tile_schedule(const Extents& extents, const AttnShape& shape, const GpuModel& gpu,
                                     bool deterministic) {
  const auto [visits, between, work_tiles, long_work_tiles] = visits_of(extents);
  int64_t longest = 0;
  for (const Extent& extent : extents.of_keys) longest = std::max(longest, extent.count);
  const size_t unseen = work_tiles < static_cast<int64_t>(extents.of_keys.size()) ? 1 : 0;  // a group of their own
  const int group = shape.num_heads_q / shape.num_heads_kv;
  const bool scattered = !deterministic && is_scattered(visits, between);
  if (scattered) {
    const bool inside = scatters_heads_inside(shape.head_dim);
    const auto [head_splits, heads_in_l2] = scattered_sections(
        longest, long_work_tiles, work_tiles, visits, shape.num_heads_q, group, gpu.multiprocessors,
        scattered_pieces(shape.seqlen_q, shape.head_dim, group, gpu.l2_bytes, gpu.has_slow_memory()), inside);
    if (head_splits > 0) return {.head_splits = head_splits, .heads_in_l2 = heads_in_l2, .heads_innermost = inside};
  }
  TileSchedule how;
  if (!scattered && extents.group_ends.size() == 1 + unseen && is_nested(longest, work_tiles, visits)) {
    how = l2_tile_schedule(shape, gpu);
  } else if (deterministic && extents.group_ends.size() > 1 + unseen) {
    how = {.heads_in_l2 = heads_in_turn(shape.num_heads_q, shape.num_heads_kv), .by_document = true};
  } else {
    how = {.heads_in_l2 = 1, .by_document = true};
    if (is_cut_by_rule(group)) {
      how.head_splits = group;
      how.max_steps = most_steps_by_rule(static_cast<double>(visits), shape.num_heads_q, gpu.multiprocessors);
    }
  }
  how.heads_innermost = choose_direction(extents).same_begin && how.heads_in_l2 == 1;
  return how;
}

}  // namespace tangram::schedule
