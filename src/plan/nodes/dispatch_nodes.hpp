// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Dispatch over several nodes: rows to nodes first, then the rows of each node to its ranks.
#pragma once

#include "plan/dispatch.hpp"
#include "plan/nodes/node_shape.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Rows to nodes as to ranks that are ranks_per_node times as fast. For self-attention of configurations with several
/// nodes.
Dispatch dispatch_to_nodes(const Mask& mask, const DistAttnConfig& config);

/// Rows of each node to its ranks, with equally many rows, about equal areas, and few rows that they need of each
/// other.
Dispatch dispatch_inside_nodes(const Mask& mask, const DistAttnConfig& config, const Dispatch& of_nodes);

/// The cheapest by dispatch_cost of dispatches to nodes first and, with kAuto, of one that knows no nodes.
ChosenDispatch dispatch_over_nodes(const Mask& mask, const DistAttnConfig& config);

}  // namespace tangram
