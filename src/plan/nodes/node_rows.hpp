// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which rows cross between nodes, and over which rail.
//
// NOTE [rails]: a row that ranks of another node need crosses to it once. It is received there by the *relay*, the rank
// of the node on the row's rail, which forwards it inside. The rail of a row is its owner's own, unless more rows than
// others leave or reach a node on that rail. Then the owner passes the row to another rank of its node, which sends it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/nodes/node_shape.hpp"
#include "plan/runs.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Rows that a node needs, all of one owner on another node.
struct NodePiece {
  Range rows;  // global
  int owner = 0;
  int rail = 0;

  friend bool operator==(const NodePiece&, const NodePiece&) = default;
};
/// Rows of each node, sorted by global row, without overlap.
using NodeRows = std::vector<std::vector<NodePiece>>;

/// The pieces that each node needs, on the rails of their owners. O(slices × nodes that share them + pieces).
NodeRows node_rows(const Mask& mask, const std::vector<OwnedRun>& q_runs, const std::vector<OwnedRun>& k_runs,
                   const NodeShape& nodes);

/// Node rows from the keys that each rank needs ([ranks], sorted, without overlap), if they are known.
NodeRows node_rows(const std::vector<std::vector<Range>>& needed, const std::vector<OwnedRun>& k_runs,
                   const NodeShape& nodes);

/// Rows on the links of each rank in one cast; returns take the same ways back.
struct NodeTraffic {
  std::vector<int64_t> sent;      // to other nodes
  std::vector<int64_t> received;  // from other nodes, as relay
  std::vector<int64_t> hops;      // of its own rows, to other rails of its node
  std::vector<int> messages;      // nodes that it receives from

  int64_t busiest() const;  // of all ranks, either direction
  int64_t total() const;    // that cross between nodes
  int64_t total_hops() const;
};
NodeTraffic traffic_of(const NodeRows& rows, const NodeShape& nodes);

/// Moves rows to other rails if a rank sends or receives more than kRailLimit times the average of a rank of the
/// busiest node. Deterministic.
inline constexpr double kRailLimit = 1.1;
void even_rails(NodeRows& rows, const NodeShape& nodes);

}  // namespace tangram
