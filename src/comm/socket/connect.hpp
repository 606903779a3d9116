// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How the processes of a SocketGroup find and connect to each other.
#pragma once

#include <vector>

#include "comm/socket/link.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {

/// One connection to each other rank, by rank; the own entry is empty. Throws as SocketGroup's constructor.
///
/// NOTE [rendezvous]: a rank connects to all lower ones and accepts the higher ones. Each time both prove that they
/// belong to the job, see NOTE [handshake]. A process that does not is dropped without a wait. Under `unix:` a rank's
/// address follows from its number. Under `tcp:` every rank but 0 listens at any port of the interface that leads to
/// rank 0, and tells rank 0. Once all have come rank 0 sends the table of addresses to all.
std::vector<UniqueFd> connect_ranks(const SocketGroupConfig& config);

}  // namespace tangram::comm
