// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// KvReadyFlags: the flags by which a kernel learns that rows of other ranks have come. Written by comm, read by attn.
#pragma once

#include <cstdint>

namespace tangram {

/// Flags that a kernel polls to learn that rows have arrived. Device addresses, valid as long as the pass.
///
/// Rows that stage `s` receives from rank `r` are in the receive buffers of the open epoch once `(int64_t)(flags[s *
/// size + r] - *epoch) >= 0`. The thread that reads the rows reads the flag with `ld.acquire.sys`. Before TMA loads,
/// the thread that issues them adds `fence.proxy.async`. Pairs without rows are never signalled: do not wait for them.
/// Sources arrive in the order rank-1, rank-2, ... (mod size), stages in cast order.
///
/// A kernel waits by `cuda::wait_for_flag` (src/cuda/wait.cuh) with `context`, which also watches the clock and whether
/// the group has failed. If it returns false the kernel stops waiting for good and runs to its end on whatever data is
/// there. It neither traps nor hangs; DeviceCommunicator::check then throws.
struct KvReadyFlags {
  const uint64_t* flags = nullptr;  // null: this transport has none, use wait_group_cast before the kernel
  const uint64_t* epoch = nullptr;
  int size = 0;
  int pass = 0;                   // number of the pass, for errors
  const void* context = nullptr;  // cuda::WaitContext
};

}  // namespace tangram
