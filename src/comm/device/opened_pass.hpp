// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// OpenedPass: what ranks show each other of an epoch when they open it, in one word, for host and device.
#pragma once

#include <cstdint>

#include "cuda/wait_context.hpp"

namespace tangram::comm {

struct OpenedPass {
  uint32_t epoch = 0;  // the number's lower half
  uint32_t tag = 0;    // of the call's facts (HostControlBlock::show_fingerprint), 19 bits; 0: it has none
  int pass = 0;        // up to 4095
};

TANGRAM_HOST_DEVICE constexpr uint64_t pack(const OpenedPass& opened) {
  return static_cast<uint64_t>(opened.epoch) << 32 | static_cast<uint64_t>(opened.tag) << 12 |
         static_cast<uint64_t>(opened.pass);
}

TANGRAM_HOST_DEVICE constexpr OpenedPass unpack_opened(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word >> 12 & 0x7ffff),
          static_cast<int>(word & 4095)};
}

/// Failure if `rank` opened `own` and `peer` opened `other`; kind kNone: no failure. Other calls of a pass come first,
/// since they say more than its number.
TANGRAM_HOST_DEVICE constexpr cuda::WaitFailure disagreement(const OpenedPass& own, const OpenedPass& other, int rank,
                                                             int peer) {
  if (own.epoch != other.epoch) return {};
  if (own.tag != 0 && other.tag != 0 && own.tag != other.tag) {
    return cuda::call_failure(rank, peer, {own.tag, other.tag});
  }
  if (own.pass != other.pass) return {cuda::WaitKind::kOrder, rank, peer, 0, own.pass, other.pass};
  return {};
}

}  // namespace tangram::comm
