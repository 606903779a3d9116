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
  /// BackwardCalls::kBoth: as deterministic calls are scheduled; empty: as `work_tiles`.
  std::vector<WorkTile> deterministic_work_tiles;
  std::vector<TileRange> runs;  ///< those of the tile list
  std::vector<RangeQueryTiles> run_tiles;
  std::vector<QueryTile> q_tiles;
  std::vector<RowInterval> intervals;
  std::vector<uint64_t> covered_queries;  ///< empty where every query sees a key, else as Params wants it
  int32_t num_accum_tiles = 0;
  Walk walk, deterministic_walk;                  ///< of the two kinds of work tiles, in the same direction
  bool zeroed_sums = true;                        ///< dq is added to zeros, else the first addition stores
  std::vector<DqOrderSegment> dq_order_segments;  ///< of all runs, in deterministic calls; empty where there are none
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
  /// The mask is that of one of several head groups, each of the shape, that one launch computes. Work tiles are chosen
  /// and scheduled as if all groups saw it; those of group `group` are kept, its heads counted from 0. Of default
  /// calls.
  int num_groups = 1;
  int group = 0;
};

/// Work tiles of all KV heads, in the order that `choose_tile_schedule` finds for the GPU. If keys are awaited, first
/// of all in the order of arrival. `tiles` is the list of the transposed `slices`, of a shape that follows the mask,
/// with 64 queries a step.
WorkList make_work_list(const TileList& tiles, std::span<const AttnSlice> slices, const AttnShape& shape,
                        const GpuModel& gpu, const AwaitedKeys& awaited_keys = {},
                        const TileScheduleOptions& options = {});

}  // namespace tangram::schedule
