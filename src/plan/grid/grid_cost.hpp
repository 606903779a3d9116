// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The planner's prediction for a grid, from areas alone: no slices need be made to compare strategies.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/clock/clock.hpp"
#include "plan/grid/grid_bytes.hpp"

namespace tangram {

struct GridWork {
  GridSizes sizes;
  /// [row_groups][steps]: visible cells of each group's steps.
  std::vector<int64_t> areas;
};

/// The chunks of K/V heads that a rank exchanges: all at once, or for HCMS those of the configuration. If it names
/// none, those with the least predicted time, even or with a short first and last one. Throws InvalidArgument, starting
/// with `function`, for chunks that are not positive or do not add up to the heads.
std::vector<int> head_chunks_of(const GridWork& work, const char* function);

/// Times of each row group.
std::vector<RankTime> grid_times(const GridWork& work, AttnPass pass, const std::vector<int>& head_chunks,
                                 ClockTrace* trace = nullptr);
/// Times of each row group of a plan; with kSubRings of each rank.
std::vector<RankTime> grid_times(const Plan& plan, AttnPass pass, ClockTrace* trace = nullptr);

/// Predicted seconds on the slowest rank.
PredictedTime predict_grid(const GridWork& work, const std::vector<int>& head_chunks);

}  // namespace tangram
