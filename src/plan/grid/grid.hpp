// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans of the strategies that split ranks into a grid: shape, rows, steps, predicted time.
#pragma once

#include <vector>

#include "plan/grid_shape.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Rows as the strategy assigns them: in sequence order, or where there are several row groups zigzag over these.
/// `config.dispatch.algorithm` may ask for either.
Dispatch grid_dispatch(const DistAttnConfig& config, const GridShape& shape, int64_t seqlen, const char* function);

/// Fills `tables` and `predicted` of a plan that has mask, config and dispatches.
void build_grid(Plan& plan, const GridShape& shape, const char* function);
/// Plan::rank_totals of a grid.
std::vector<RankPlan> grid_totals(const Plan& plan);

/// The steps of each rank where documents move round rings of sub-groups, and the documents by size of sub-group. A
/// document's sub-group is the smallest that holds its rows, however these were assigned.
void build_sub_rings(Plan& plan);

/// Like `head_chunks_of` in grid_cost.hpp, for a plan that has its steps.
std::vector<int> head_chunks_of(const Plan& plan, const char* function);
/// Predicted seconds on the slowest rank.
PredictedTime predict_grid(const Plan& plan);

}  // namespace tangram
