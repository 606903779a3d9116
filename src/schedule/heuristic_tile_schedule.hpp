// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The rule of tile_schedule_heuristic.hpp as a TileSchedule.
#pragma once

#include "schedule/extents.hpp"
#include "schedule/tile_schedule.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::schedule {

/// Tile schedule of lists that a GPU builds, without the simulations of choose_tile_schedule.
TileSchedule heuristic_tile_schedule(const Extents& extents, const AttnShape& shape, const GpuModel& gpu,
                                     bool deterministic);

/// Tile schedule of nested masks: sections of as many query heads as have their data in L2, as for a causal mask of the
/// shape. Depends on shape and GPU alone; simulates a few makespans.
TileSchedule l2_tile_schedule(const AttnShape& shape, const GpuModel& gpu);

}  // namespace tangram::schedule
