// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The predicted time line of a plan.
#pragma once

#include <vector>

#include "plan/clock/clock.hpp"

namespace tangram {

/// Times by rank; that of the slowest is Plan::predicted. Appends the events of the ranks that `trace` names, from the
/// start of the pass.
std::vector<RankTime> plan_times(const Plan& plan, AttnPass pass, ClockTrace* trace = nullptr);

}  // namespace tangram
