// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The buffers, stages and local slices of one rank of a MovementPlan.
#pragma once

#include <vector>

#include "plan/movement/movement.hpp"

namespace tangram {

/// Everything but the exchanges. `slices` in flattened global rows, see RankWork.
MovementRank rank_tables(std::vector<AttnSlice> slices, int self, const std::vector<OwnedRun>& q_runs,
                         const std::vector<OwnedRun>& k_runs, int num_stages);

}  // namespace tangram
