// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// TwoLevelTables: the tables of an exchange between ranks on several nodes, split so that each row crosses to a node
// once. Plain functions of the tables of all ranks, so that host and GPU transports share them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/exchange.hpp"

namespace tangram::comm {

/// Which ranks share a node: [n * ranks_per_node, (n + 1) * ranks_per_node) are on node n.
struct NodeLayout {
  int num_ranks = 1;
  int ranks_per_node = 1;

  int num_nodes() const { return num_ranks / ranks_per_node; }
  int node_of(int rank) const { return rank / ranks_per_node; }
  int place_of(int rank) const { return rank % ranks_per_node; }
  int rank_at(int node, int caller) const { return node * ranks_per_node + caller; }
  /// The rank in the same place, `distance` nodes further on (negative: back), cyclically.
  int across(int rank, int distance) const;
};

/// Rows of a relay buffer that the relaying rank needs itself, and where they belong in its own buffer.
struct RelayedRows {
  Range relay;
  int64_t target = 0;

  friend bool operator==(const RelayedRows&, const RelayedRows&) = default;
};

/// What a rank does for one node distance d of 1, ..., num_nodes - 1: rows go to the rank in the same place d nodes on,
/// each once, into its relay buffer, and from there to those of its node that need them.
struct Hop {
  int source = 0;          // rank whose rows this one relays
  int target = 0;          // rank that relays this one's
  int64_t relay_rows = 0;  // of the own relay buffer
  Exchange between;        // cast: rows of the shard -> rows of the target's relay buffer
  Exchange forward;        // cast: rows of relay buffers -> rows of the buffers in the node
  std::vector<RelayedRows> own;
  Exchange return_forward;  // cast: partial rows of the node -> a staging area at the relay
  Exchange return_between;  // cast: rows of the relay buffer -> a staging area at the owner
};

/// NOTE [two levels]: a cast runs `direct` and all hops, in any order. A reduction runs backwards: partial rows of a
/// node come together at the relay, are added there, and only the sums cross to the owner. Rows come back beside the
/// owned ones, into staging areas that hold the rows of `direct.sends` (of a hop: of `forward.sends` at the relay, of
/// `between.sends` at the owner) one after the other, so that the order of a sum does not depend on who came first.
struct TwoLevelTables {
  Exchange direct;         // cast: rows of the shard -> rows of the buffers of the own node
  Exchange return_direct;  // cast: partial rows -> a staging area at owners of the own node
  std::vector<Hop> hops;   // by distance - 1
};

/// The tables of one rank. `ranks` are the tables of all ranks, as those of a group_cast, which fit together.
TwoLevelTables make_two_level(const NodeLayout& nodes, std::span<const Exchange> ranks, int rank);

/// The tables of all ranks, for each stage of a pass.
using StageTables = std::vector<std::vector<Exchange>>;

/// The same for all stages of a pass at once, which share relay buffers: a row that a node needs in several stages
/// crosses in the first of them. So stages must run in this order.
std::vector<TwoLevelTables> make_two_level(const NodeLayout& nodes, const StageTables& stages, int rank);

/// Rows of the relay buffer in which `relay` receives from the node `distance` back.
int64_t relay_rows(const NodeLayout& nodes, const StageTables& stages, int relay, int distance);

}  // namespace tangram::comm
