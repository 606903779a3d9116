// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_map.hpp"

#include <numeric>

#include "comm/all_gather.hpp"
#include "core/require.hpp"

namespace tangram::comm {

NodeMap::NodeMap(std::span<const ProcessIdentity> ranks) {
  std::vector<const ProcessIdentity*> firsts;  // by node
  for (const ProcessIdentity& rank : ranks) {
    size_t node = 0;
    while (node < firsts.size() && !rank.is_same_node(*firsts[node])) ++node;
    if (node == firsts.size()) {
      firsts.push_back(&rank);
      names_.emplace_back(rank.node_name());
    }
    node_of_.push_back(static_cast<int>(node));
  }
}

NodeMap NodeMap::of(Communicator& control) {
  return NodeMap(all_gather(control, ProcessIdentity::own(), "nodes of ranks"));
}

std::vector<std::string> NodeMap::names_of_ranks() const {
  std::vector<std::string> names;
  for (const int node : node_of_) names.push_back(name(node));
  return names;
}

int NodeMap::ranks_per_node() const {
  int common = 0, begin = 0;
  for (int rank = 1; rank <= num_ranks(); ++rank) {
    if (rank < num_ranks() && node_of(rank) == node_of(begin)) continue;
    common = std::gcd(common, rank - begin);
    if (rank == num_ranks()) break;
    // Nodes are numbered by their first ranks, so that a lower number is of a node that was left before.
    require(node_of(rank) > node_of(begin),
            "NodeMap: ranks of a node must be numbered one after the other, so start them node by node, as mpirun "
            "--map-by slot and srun --distribution=block do (got rank {} on {} again, behind ranks of {})",
            rank, name(node_of(rank)), name(node_of(begin)));
    begin = rank;
  }
  return common;
}

}  // namespace tangram::comm
