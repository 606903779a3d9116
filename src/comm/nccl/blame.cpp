// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/blame.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace tangram::comm {

int slowest_peer(const HostControlBlock& control_block, int rank) {
  const uint64_t own = HostControlBlock::load(control_block.row(rank).progress);
  std::optional<std::pair<uint64_t, uint64_t>> least;  // operations, last sign of life
  int slowest = -1;
  for (int peer = 0; peer < control_block.size(); ++peer) {
    if (peer == rank) continue;
    const cuda::ControlBlockRow& row = control_block.row(peer);
    const std::pair seen(std::min(HostControlBlock::load(row.progress), own), HostControlBlock::load(row.heartbeat_ns));
    if (least && *least <= seen) continue;
    least = seen;
    slowest = peer;
  }
  return slowest;
}

}  // namespace tangram::comm
