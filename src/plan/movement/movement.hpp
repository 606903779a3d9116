// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// From work dealt to ranks to the tables of a MovementPlan.
#pragma once

#include <vector>

#include "plan/runs.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// The runs of a dispatch over flattened rows: those of every head group, one group after the other.
std::vector<OwnedRun> flattened_runs(const Dispatch& dispatch, int head_groups);

/// Work of every rank: canonical slices in flattened global rows, disjoint, each inside one run of queries.
using RankWork = std::vector<std::vector<AttnSlice>>;

/// The tables of one pass.
std::vector<MovementRank> movement_tables(RankWork work, const std::vector<OwnedRun>& q_runs,
                                          const std::vector<OwnedRun>& k_runs);

/// Fills `movement`, `ranks` and `predicted` of a plan that has mask, config and dispatches.
void build_movement(Plan& plan);

}  // namespace tangram
