// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// From work dealt to ranks to the tables of a MovementPlan.
#pragma once

#include <span>
#include <vector>

#include "plan/clock/clock.hpp"
#include "plan/runs.hpp"
#include "plan/stages.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Runs of queries and keys, found once: there may be a chunk for each row.
struct PlanRuns {
  std::vector<OwnedRun> q;
  std::vector<OwnedRun> k;
};
PlanRuns runs_of(const Plan& plan);

/// The runs of a dispatch over flattened rows: those of every head group, one group after the other.
std::vector<OwnedRun> flattened_runs(const std::vector<OwnedRun>& runs, const Dispatch& dispatch, int head_groups);

/// Calls visit(run index, piece) for the visible cells of the mask in every run of queries, in row order.
template <class Visit>
void for_each_row_piece(const Mask& mask, const std::vector<OwnedRun>& q_runs, const Visit& visit) {
  const std::span<const AttnSlice> slices = mask.slices();  // sorted by first query row
  std::vector<size_t> active;
  size_t next = 0;
  for (size_t i = 0; i < q_runs.size(); ++i) {
    const Range rows = q_runs[i].global;
    for (; next < slices.size() && slices[next].q_range.begin < rows.end; ++next) active.push_back(next);
    size_t num_kept = 0;
    for (const size_t index : active) {
      const AttnSlice& slice = slices[index];
      visit(i, rows.contains(slice.q_range) ? slice : cut_rows(slice, rows));
      if (slice.q_range.end > rows.end) active[num_kept++] = index;
    }
    active.resize(num_kept);
  }
}

/// The union of the slices' query ranges, as needed_keys.
std::vector<Range> needed_queries(const std::vector<AttnSlice>& slices);

/// Work of every rank: canonical slices in flattened global rows, disjoint, each inside one run of queries.
using RankWork = std::vector<std::vector<AttnSlice>>;

/// The tables of one pass with `num_stages` remote stages.
std::vector<MovementRank> movement_tables(RankWork work, const std::vector<OwnedRun>& q_runs,
                                          const std::vector<OwnedRun>& k_runs, int num_stages);

/// Predicted for tables with at least one rank.
std::vector<RankTime> movement_times(const DistAttnConfig& config, const std::vector<MovementRank>& ranks,
                                     int head_groups, AttnPass pass, ClockTrace* trace = nullptr);

/// Fills `movement`, `ranks` and `predicted` of a plan that has mask, config and dispatches. Leaves it as it is when
/// the planner chooses and nothing is gained by moving queries; `kv_seconds` is what the plan takes that only moves
/// K/V.
void build_movement(Plan& plan, double kv_seconds);

}  // namespace tangram
