// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodeControls: the host communicators of a rank's node and of the ranks in its place of each node, out of that of all
// ranks.
#pragma once

#include <optional>

#include "comm/hierarchical/two_level.hpp"
#include "tangram/communicator.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {

class NodeControls {
 public:
  /// Collective. All ranks must be on one host: they meet in a folder that rank 0 makes. Throws CommError, on all
  /// ranks, where it cannot.
  NodeControls(Communicator& world, const NodeLayout& nodes, double timeout_s);

  Communicator& node() { return node_->communicator(); }
  Communicator& across() { return across_->communicator(); }

 private:
  std::optional<SocketGroup> node_, across_;
};

}  // namespace tangram::comm
