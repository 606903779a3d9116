// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// From dispatches to what each rank holds and computes.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/plan.hpp"

namespace tangram {

/// Slices, area and segments of every rank; every stage is still 0 and no stages are made (see stages.hpp).
std::vector<RankPlan> make_rank_plans(const Mask& mask, const Dispatch& q_dispatch, const Dispatch& k_dispatch);

}  // namespace tangram
