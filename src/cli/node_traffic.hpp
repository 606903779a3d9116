// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// K/V rows that a forward pass must bring from other nodes, by the plan alone.
#pragma once

#include <cstdint>

#include "tangram/plan.hpp"

namespace tangram::cli {

struct NodeRows {
  int64_t once_per_node = 0;  // each row once to each node that needs it, in whichever stages
  int64_t to_each_rank = 0;   // what crosses when no rank forwards rows
};
/// Rows that cross nodes, over all ranks and stages. `plan` has ranks with stages, that is, is of Tangram's own
/// strategy.
NodeRows rows_between_nodes(const Plan& plan, int ranks_per_node);

}  // namespace tangram::cli
