// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The two sums of a hierarchical reduction: of a node's partial rows at the relay, and of all nodes' at the owner.
#pragma once

#include <span>
#include <vector>

#include "comm/hierarchical/two_level.hpp"
#include "comm/operation.hpp"

namespace tangram::comm {

using Tensors = std::vector<HostTensor>;

/// Tensors like those of `views`, of `rows` rows.
Tensors tensors_like(std::span<const TensorView> views, int64_t rows);

/// At the relay of `hop`: its own partial rows and those of its node, `staged` in the order of hop.forward.sends, added
/// in rank order. The result has the rows of the relay buffer.
Tensors sum_of_node(const Operation& operation, Caller caller, const Hop& hop, const Tensors& staged);

/// At the owner: what was staged from its own node, and from other nodes for each hop, is added to the targets of
/// `operation`: nodes in ascending order, the ranks of the own node in theirs. Rounds once.
void sum_of_all(const Operation& operation, Caller caller, const NodeLayout& nodes, const TwoLevelTables& tables,
                const Tensors& staged_direct, const std::vector<Tensors>& staged_hops);

}  // namespace tangram::comm
