// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HierarchicalGroup: a communicator for ranks on several nodes that sends each row to a node once, over communicators
// that know nothing of nodes.
#pragma once

#include <memory>

#include "tangram/communicator.hpp"

namespace tangram {

struct HierarchicalConfig {
  /// Ranks [n * ranks_per_node, (n + 1) * ranks_per_node) are on node n. Must divide the number of ranks.
  int ranks_per_node = 1;
  /// Moves rows inside this rank's node: rank r of it is the node's r-th. Null: the group's own communicator does.
  Communicator* node = nullptr;
  /// Moves rows between nodes: its ranks are those in the same place of each node, by node. Null: as above.
  Communicator* across = nullptr;
};

/// One rank's place in the group. A row that several ranks of another node need goes to the one in the sender's place
/// there, which hands it on; partial rows of a node are added at such a rank before they cross, in rank order.
///
/// Results of casts are those of the flat communicator, bitwise. Sums are added in rank order inside each node, rounded
/// to the dtype of the rows where they cross, and added by node: the same from run to run, but not bitwise those of the
/// flat communicator.
class HierarchicalGroup {
 public:
  /// Collective over `world`, which meets for every operation before rows move (it finds out who is missing and whether
  /// the calls fit) and must, like the levels, outlive the group and be used by it alone meanwhile. Throws
  /// InvalidArgument, on every rank, for a config that cannot be or that differs between ranks.
  HierarchicalGroup(Communicator& world, const HierarchicalConfig& config);
  /// Ends when the calls made so far are done.
  ~HierarchicalGroup();
  HierarchicalGroup(HierarchicalGroup&&) noexcept;
  HierarchicalGroup& operator=(HierarchicalGroup&&) noexcept;

  /// Its counters() are rows from and to this rank by the tables of the calls, as those of a flat communicator.
  Communicator& communicator();

  /// Rows that this rank really sent and received inside its node and across nodes, relayed ones among them. Values of
  /// all_reduce do not count, nor do control messages.
  TrafficCounters within_node() const;
  TrafficCounters across_nodes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
