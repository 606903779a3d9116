// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How long a schedule takes, by a simulation of the multiprocessors.
#pragma once

#include <limits>
#include <optional>
#include <span>

#include "schedule/tile_schedule.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::schedule {

/// Cost of a work tile beside its steps, in steps; others lose as much or more
/// (benchmarks/schedule/fit_tile_schedules.cpp).
struct WorkTileCosts {
  double work_tile = 3;  ///< its begin and end
  double join = 2.5;     ///< of a piece that joins one other; concurrent pieces end together, and slow each other down
};

/// A mask on a GPU. `arrives`: see choose_tile_schedule.
struct Setting {
  const Extents& extents;
  const AttnShape& shape;
  GpuModel gpu;
  std::span<const double> arrives;
};

/// Steps until the last multiprocessor is done, or more than `enough` of them where it is longer than that.
double makespan(const Setting& in, const TileSchedule& how, const WorkTileCosts& costs = {},
                double enough = std::numeric_limits<double>::infinity());

/// Lower bounds: of every schedule, and of this one, since its longest work tile takes so long.
double least_makespan(const Setting& in, const WorkTileCosts& costs = {});
double longest_work_tile(const Setting& in, const TileSchedule& how, const WorkTileCosts& costs = {});

/// Bounds of the makespan without a simulation: a work tile begins, at the latest, when all work scheduled before it,
/// evenly shared, is done. Nothing if keys are awaited, and for schedules that change towards the end.
struct Bounds {
  double least = 0, most = 0;
};
std::optional<Bounds> makespan_bounds(const Setting& in, const TileSchedule& how, const WorkTileCosts& costs = {});

/// Steps of each multiprocessor, without any other costs, if all did as much.
double even_steps(const Setting& in);

}  // namespace tangram::schedule
