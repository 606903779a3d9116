// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/plan_times.hpp"

#include <utility>

#include "plan/clock/kv_time.hpp"
#include "plan/grid/grid_cost.hpp"
#include "plan/movement/movement.hpp"

namespace tangram {

namespace {

// What row groups do is what their ranks do.
std::vector<RankTime> times_of_members(const Plan& plan, AttnPass pass, ClockTrace* trace) {
  const int members = plan.ulysses_degree();
  ClockTrace groups;
  for (int rank = 0; trace != nullptr && rank < plan.cp_size(); ++rank) {
    if (rank % members == 0) groups.ranks.push_back(false);
    if (trace->traces(static_cast<size_t>(rank))) groups.ranks.back() = true;
  }
  const std::vector<RankTime> of_groups = grid_times(plan, pass, trace == nullptr ? nullptr : &groups);
  for (const ClockEvent& event : groups.events) {
    for (int rank = event.rank * members; rank < (event.rank + 1) * members; ++rank) {
      if (!trace->traces(static_cast<size_t>(rank))) continue;
      trace->events.push_back(event);
      trace->events.back().rank = rank;
    }
  }
  std::vector<RankTime> times;
  for (int rank = 0; rank < plan.cp_size(); ++rank) times.push_back(of_groups[static_cast<size_t>(rank / members)]);
  return times;
}

}  // namespace

std::vector<RankTime> plan_times(const Plan& plan, AttnPass pass, ClockTrace* trace) {
  if (plan.grid() != nullptr) return times_of_members(plan, pass, trace);
  const MovementPlan* movement = plan.movement();
  if (movement == nullptr) return kv_times(plan.config, plan.ranks(), pass, trace);
  return movement_times(plan.config, movement->of(pass), movement->head_groups, pass, trace);
}

}  // namespace tangram
