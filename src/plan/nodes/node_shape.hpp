// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which node each rank is on: ranks are numbered node by node.
#pragma once

#include "tangram/config.hpp"

namespace tangram {

/// `ranks_per_node` divides `cp_size`.
struct NodeShape {
  int cp_size = 1;
  int ranks_per_node = 1;

  int num_nodes() const { return cp_size / ranks_per_node; }
  int node_of(int rank) const { return rank / ranks_per_node; }
  /// The number of a rank in its node, which is also that of its rail: the ranks with that number on all nodes.
  int rail_of(int rank) const { return rank % ranks_per_node; }
  int rank(int node, int rail) const { return node * ranks_per_node + rail; }
  bool same_node(int a, int b) const { return node_of(a) == node_of(b); }
};

/// Whether the ranks are on several nodes.
inline bool has_nodes(const DistAttnConfig& config) {
  return config.cost.ranks_per_node > 0 && config.cost.ranks_per_node < config.cp_size;
}
/// The nodes of a configuration; one node where it has no others.
inline NodeShape node_shape(const DistAttnConfig& config) {
  return {config.cp_size, has_nodes(config) ? config.cost.ranks_per_node : config.cp_size};
}

}  // namespace tangram
