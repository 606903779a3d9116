// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Ordered accesses to memory that several GPUs and the host share, for flags between them.
// PTX ISA, "Memory Consistency Model" and "Async proxy".
#pragma once

#include <cstdint>

namespace tangram::ptx {

/// Reads a word. Data written before the store_release_system (or the copy engine's later copy) that it sees, on any
/// device, is visible to this thread afterwards.
__device__ __forceinline__ uint64_t load_acquire_system(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/// Writes a word after everything that this thread, or threads that it has synchronised with, wrote before.
__device__ __forceinline__ void store_release_system(uint64_t* address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/// Reads a word, ordered with nothing.
__device__ __forceinline__ uint64_t load_relaxed_system(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/// Orders this thread's earlier accesses to global memory (an acquire among them) before its later bulk copies, and
/// completed bulk copies before its later accesses.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Nanoseconds of a clock that runs alike in all threads of a device; resolution up to 1 us.
__device__ __forceinline__ uint64_t global_timer_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

}  // namespace tangram::ptx
