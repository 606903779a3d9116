// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodeMap: on which node each rank is.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/heap/process_identity.hpp"
#include "tangram/communicator.hpp"

namespace tangram::comm {

/// Nodes are numbered in the order of their first ranks.
class NodeMap {
 public:
  explicit NodeMap(std::span<const ProcessIdentity> ranks);
  /// Collective over `control`.
  static NodeMap of(Communicator& control);

  int num_ranks() const { return static_cast<int>(node_of_.size()); }
  int num_nodes() const { return static_cast<int>(names_.size()); }
  int node_of(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  const std::string& name(int node) const { return names_[static_cast<size_t>(node)]; }
  /// By rank.
  std::vector<std::string> names_of_ranks() const;

  /// So many ranks, one after the other, share a node everywhere: the greatest common divisor of the nodes' numbers of
  /// ranks. Throws InvalidArgument unless the ranks of each node are numbered one after the other.
  int ranks_per_node() const;

 private:
  std::vector<int> node_of_;
  std::vector<std::string> names_;
};

}  // namespace tangram::comm
