// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// From the tile list of a transposed mask to the work tiles of the backward kernel, in the order in which they are
// scheduled.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedule/awaited_keys.hpp"
#include "schedule/key_work_tiles.hpp"
#include "schedule/tile_schedule.hpp"
#include "tangram/attn_pass.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

struct WorkList {
  /// Work tiles of default calls, or of deterministic calls if BackwardCalls::kDeterministic.
  std::vector<WorkTile> work_tiles;
  /// Work tiles of deterministic calls, if BackwardCalls::kBoth. Empty if they equal `work_tiles`.
  std::vector<WorkTile> deterministic_work_tiles;
  std::vector<TileRange> runs;  ///< runs of the tile list
  std::vector<RangeQueryTiles> run_tiles;
  std::vector<QueryTile> q_tiles;
  std::vector<RowInterval> intervals;
  std::vector<uint64_t> covered_queries;  ///< as in Params; empty if every query sees a key
  int32_t num_accum_tiles = 0;
  Walk walk, deterministic_walk;                  ///< of the two lists of work tiles; same direction
  bool zeroed_sums = true;                        ///< dq is added to zeros, else the first addition stores
  std::vector<DqOrderSegment> dq_order_segments;  ///< of all runs; empty without deterministic calls
  int32_t num_masks = 1;                          ///< see NOTE [tables of masks]
  /// Share of all steps that is scheduled before each of `work_tiles`, with TileScheduleOptions::num_groups.
  std::vector<double> scheduled_before;
};

struct TileScheduleOptions {
  BackwardCalls calls = BackwardCalls::kBoth;
  /// Overrides choose_tile_schedule, for measurements (benchmarks/schedule/time_tile_schedules.cpp).
  std::optional<TileSchedule> given;
  /// Whether default calls are scheduled by heuristic_tile_schedule, like lists that a GPU builds.
  bool by_rule = false;
  /// One launch computes several head groups of this shape; the mask is that of head group `group`. Work tiles are
  /// chosen and scheduled as if all head groups saw it. The list keeps those of `group`, with heads counted from 0. For
  /// default calls only.
  int num_groups = 1;
  int group = 0;
};

/// Work tiles of all KV heads, in the order that `choose_tile_schedule` finds for the GPU. Work tiles with awaited keys
/// are ordered by arrival first. `tiles` is the tile list of the transposed `slices`: its work tiles are key tiles. Its
/// key tiles are query tiles of at most 64 queries, a step each.
WorkList make_work_list(const TileList& tiles, std::span<const AttnSlice> slices, const AttnShape& shape,
                        const GpuModel& gpu, const AwaitedKeys& awaited_keys = {},
                        const TileScheduleOptions& options = {});

}  // namespace tangram::schedule
