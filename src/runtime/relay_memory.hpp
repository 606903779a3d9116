// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What relays of a plan over several nodes take of their GPUs, before any pass is prepared.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/device_communicator.hpp"
#include "tangram/plan.hpp"

namespace tangram {

struct RelayMemory {
  int64_t key_rows = 0;       ///< of other nodes, that the rank holds for its node at a time
  int64_t gradient_rows = 0;  ///< of other nodes, whose gradients it adds for its node
  int64_t bytes = 0;          ///< what that takes beside Plan::peak_bytes: of the pass that needs most
};

/// By rank, of a plan that moves K/V alone, whose nodes are those of its configuration; nothing on one node. What
/// DeviceCommunicator::prepare_pass refuses where it does not fit.
std::vector<RelayMemory> relay_memory(const Plan& plan);

/// The tensors of a pass of such a plan, as they move between GPUs of several nodes.
DevicePassSpec tensors_over_nodes(const Plan& plan, int rank, AttnPass pass);

}  // namespace tangram
