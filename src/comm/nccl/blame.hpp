// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whom a rank names that waits in vain inside of NCCL, which does not tell for whom.
#pragma once

#include "comm/device/host_control_block.hpp"

namespace tangram::comm {

/// The peer that has begun fewest operations, if fewer than `rank`, else the one that was heard of least lately.
int slowest_peer(const HostControlBlock& control_block, int rank);

}  // namespace tangram::comm
