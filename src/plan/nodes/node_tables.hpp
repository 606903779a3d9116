// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Sends and receives of one cast over several nodes, from the plan alone. Every rank makes the same tables, so that
// none are gathered. See NOTE [rails].
#pragma once

#include <vector>

#include "plan/nodes/node_stages.hpp"

namespace tangram {

/// Rows that go to, or come from, a rank in a stage.
struct NodeCopy {
  int stage = 0;
  int peer = 0;
  Range rows;  // global

  friend constexpr auto operator<=>(const NodeCopy&, const NodeCopy&) = default;
};
/// A way of rows between two ranks: what one sends another receives. Sorted; rows of one stage and peer are joined.
struct NodeExchange {
  std::vector<NodeCopy> sends;
  std::vector<NodeCopy> recvs;

  friend bool operator==(const NodeExchange&, const NodeExchange&) = default;
};

/// The part of one rank. A cast takes the ways in this order, a return backwards.
struct NodeTables {
  NodeExchange inside;   // rows of owners to ranks of their own node
  NodeExchange hops;     // rows of owners to ranks of their own node that send them to other nodes, each once
  NodeExchange between;  // rows to other nodes, from rank to rank of a rail
  NodeExchange forward;  // rows that have crossed, from their relay to the other ranks of the node that need them

  friend bool operator==(const NodeTables&, const NodeTables&) = default;
};

/// [ranks] of a K/V plan of a configuration with several nodes (has_nodes).
std::vector<NodeTables> node_tables(const Plan& plan, AttnPass pass);

/// The rows that cross between nodes in a cast of the plan, on their rails.
NodeRows rails_of(const Plan& plan);

}  // namespace tangram
