// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodeControls: the host communicators of a rank's node and of its rail, the ranks in its place of each node, out of
// that of all ranks.
#pragma once

#include <optional>

#include "comm/nodes/node_map.hpp"
#include "comm/nodes/two_level.hpp"
#include "tangram/communicator.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {

class NodeControls {
 public:
  /// Collective. The ranks of a node of `nodes` must be on one host, where they meet in a folder that the first of them
  /// makes. So do rails if `map` has one node; else they meet by TCP (meeting_by_tcp). Throws CommError, on all ranks,
  /// where a folder cannot be made or a rank cannot listen.
  NodeControls(Communicator& world, const NodeLayout& nodes, const NodeMap& map, double timeout_s);

  Communicator& node() { return node_->communicator(); }
  Communicator& across() { return across_->communicator(); }

 private:
  std::optional<SocketGroup> node_, across_;
};

}  // namespace tangram::comm
