// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The flags by which a kernel learns that awaited keys are there. Plain data for host and device.
#pragma once

#include <cstdint>

#include "schedule/awaited_keys.hpp"
#include "tangram/kv_ready_flags.hpp"

namespace tangram::gpu {

using schedule::kReadyGranule;

/// A kernel's view. `pending == 0`: every key is there.
struct ReadyFlagParams {
  KvReadyFlags ready_flags;
  const uint64_t* needed;      ///< for every granule of keys the bits of the flags that it needs
  const int32_t* flag_of_bit;  ///< [kMaxReadyFlags]
  uint64_t pending;            ///< all bits
};

}  // namespace tangram::gpu
