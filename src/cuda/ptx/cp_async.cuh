// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Copies of 16 bytes a thread from global to shared memory that run on: for rows that lie anywhere, to any place.
// PTX ISA, "Data Movement and Conversion Instructions: cp.async". They write by the generic proxy: after the wait,
// fence_proxy_async() makes what this thread has copied visible to matmuls.
#pragma once

#include <cstdint>

namespace tangram::ptx {

/// Copies 16 bytes to the shared-window address `destination` (smem_address), or writes zeros there and reads nothing.
/// Both aligned to 16 bytes. Through L2 alone.
__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source, bool is_zero) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(is_zero ? 0 : 16)
               : "memory");
}

/// Closes a group of this thread's copies so far.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tangram::ptx
