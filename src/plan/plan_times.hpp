// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The predicted time line of a plan.
#pragma once

#include <vector>

#include "plan/clock/clock.hpp"

namespace tangram {

/// By rank; that of the slowest is Plan::predicted. What the ranks that `trace` names do when is appended to it, from
/// the start of the pass.
std::vector<RankTime> plan_times(const Plan& plan, AttnPass pass, ClockTrace* trace = nullptr);

}  // namespace tangram
