// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// From work assigned to ranks to the tables of a MovementPlan.
#pragma once

#include <vector>

#include "plan/clock/clock.hpp"
#include "plan/runs.hpp"
#include "plan/stages.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// The runs of a dispatch over flattened rows: those of every head group, one group after the other.
std::vector<OwnedRun> flattened_runs(const std::vector<OwnedRun>& runs, const Dispatch& dispatch, int head_groups);

/// The union of the slices' query ranges, as needed_keys.
std::vector<Range> needed_queries(const std::vector<AttnSlice>& slices);

/// The tables of one pass with `num_stages` remote stages.
std::vector<MovementRank> movement_tables(RankWork work, const std::vector<OwnedRun>& q_runs,
                                          const std::vector<OwnedRun>& k_runs, int num_stages);

/// Predicted for tables with at least one rank.
std::vector<RankTime> movement_times(const DistAttnConfig& config, const std::vector<MovementRank>& ranks,
                                     int head_groups, AttnPass pass, ClockTrace* trace = nullptr);

/// Fills `movement`, `ranks` and `predicted` of a plan that has mask, config and dispatches. Leaves the plan unchanged
/// if the planner chooses and QO communication gains nothing; `kv_seconds` is the predicted time of the plan with K/V
/// communication.
void build_movement(Plan& plan, double kv_seconds);

}  // namespace tangram
