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

/// Moves the keys of each slice from global rows to rows of the buffer that holds the ranges `needed` one after the
/// other. See NOTE [global row order]: one offset per slice does.
void move_keys_to_buffer(std::vector<AttnSlice>& slices, const std::vector<Range>& needed);

}  // namespace tangram
