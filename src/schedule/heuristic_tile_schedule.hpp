// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The rule of tile_schedule_heuristic.hpp as a TileSchedule.
#pragma once

#include "schedule/extents.hpp"
#include "schedule/tile_schedule.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::schedule {

/// Of lists that a GPU builds. Without the simulations of choose_tile_schedule.
TileSchedule heuristic_tile_schedule(const Extents& extents, const AttnShape& shape, const GpuModel& gpu,
                                     bool deterministic);

/// Of nested masks by that rule: sections of as many query heads as the L2 cache holds what belongs to them, as a
/// causal mask of the shape is scheduled. A function of shape and GPU, whatever the mask; plays a few makespans.
TileSchedule l2_tile_schedule(const AttnShape& shape, const GpuModel& gpu);

}  // namespace tangram::schedule
