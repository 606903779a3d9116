// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Why the plan is as it is: the same mask under every other dispatch, in the planner's own currency.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tangram/plan.hpp"

namespace tangram::cli {

/// A dispatch algorithm and what its plan comes to. Times are predictions of the cost model.
struct PlanChoice {
  DispatchAlgorithm algorithm = DispatchAlgorithm::kSequential;
  int64_t chunk_size = 0;
  double balance = 1;
  int64_t rows_moved = 0;
  double step_s = 0;
  double exposed_s = 0;
};

/// The plan itself and the plans of all other named algorithms under the same configuration, cheapest first. Each
/// chooses its chunk size unless one was given.
std::vector<PlanChoice> compare_choices(const Plan& plan);

/// Sentences that say how the plan came about, each checkable against its figures, and why what `choices` show to be
/// faster was not taken.
std::vector<std::string> plan_reasons(const Plan& plan, const std::vector<PlanChoice>& choices);

}  // namespace tangram::cli
