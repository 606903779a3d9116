// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Work of ranks with its tables, and how choices are compared.
#pragma once

#include <vector>

#include "plan/movement/movement.hpp"

namespace tangram {

/// Cost by which choices are compared.
struct MovementCost {
  double seconds = 0;
  double bytes = 0;  ///< that all ranks receive
};

/// Index of the choice that moves least among those predicted within 2 % of the fastest. The cost model cannot resolve
/// smaller differences, so they are not worth bytes. The first of equal ones.
size_t best_of(const std::vector<MovementCost>& costs);

/// Tables and time of one pass.
struct BuiltPass {
  std::vector<MovementRank> ranks;
  RankTime time;  ///< of the slowest rank
  double bytes = 0;

  MovementCost cost() const { return {time.total_s, bytes}; }
};
/// Builds a pass with the configured number of stages, or the best of those tried.
BuiltPass build_pass(const Plan& plan, const PlanRuns& runs, RankWork work, int head_groups, AttnPass pass);

/// Both passes.
struct MovementCandidate {
  BuiltPass forward;
  BuiltPass backward;
  int head_groups = 1;

  bool empty() const { return forward.ranks.empty(); }
  MovementCost cost() const { return {forward.time.total_s + backward.time.total_s, forward.bytes + backward.bytes}; }
};
/// Candidate with the same work in both passes, whose tables differ in the number of stages alone.
MovementCandidate build_both(const Plan& plan, const PlanRuns& runs, RankWork work, int head_groups);

/// Fills tables and predicted of the plan.
void adopt(Plan& plan, MovementCandidate candidate);
/// Best candidate for each pass, of candidates that have equally many head groups; empty where there are none.
MovementCandidate best_of_each_pass(std::vector<MovementCandidate> candidates);

/// Largest area of a rank ÷ mean.
double balance_of(const std::vector<MovementRank>& ranks);
/// For each pass the candidate that moves least among those whose balance is within 0.01 of the best. All must have
/// equally many head groups; empty if there are none.
MovementCandidate least_bytes_of_each_pass(std::vector<MovementCandidate> candidates);
/// The index of the one that moves least of those that no other balances better by 0.01, in either pass.
size_t least_bytes_of(const std::vector<MovementCandidate>& candidates);

/// Every piece where its queries lie, and where its keys lie.
RankWork work_by_queries(const Mask& mask, const PlanRuns& runs, int cp_size);
RankWork work_by_keys(const Mask& mask, const PlanRuns& runs, int cp_size);

}  // namespace tangram
