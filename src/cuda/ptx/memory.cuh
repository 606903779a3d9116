// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Ordered accesses to memory: flags and counters between CTAs of one device in global memory, and words of a CTA.
// PTX ISA, "Memory Consistency Model" and "Data Movement and Conversion Instructions: ld, st, red".
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace tangram::ptx {

/// Where the dynamic shared memory of the CTA begins, aligned to 1024 bytes.
__device__ __forceinline__ void* dynamic_shared_memory() {
  extern __shared__ __align__(1024) unsigned char bytes[];
  return bytes;
}

/// Reads a word; what was written before the store_release or add_release that it sees is visible afterwards.
__device__ __forceinline__ int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// Writes a word after everything that this thread, or threads that it has synchronised with, wrote before.
__device__ __forceinline__ void store_release(int32_t* address, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Like store_release, adding `value` to the word.
__device__ __forceinline__ void add_release(int32_t* address, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Stores four float32 to global memory at `address`, aligned to 16 bytes. Not moved among matmuls, which would cost
/// registers.
__device__ __forceinline__ void store_f32x4(float4* address, const float4& value) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(value.x), "f"(value.y), "f"(value.z),
               "f"(value.w)
               : "memory");
}

/// Adds four float32 to global memory at `address`, aligned to 16 bytes; each addition is atomic, in no order.
__device__ __forceinline__ void reduce_add_f32x4(float4* address, const float4& value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

/// Acquire load of a word in shared memory, within a CTA.
__device__ __forceinline__ uint64_t load_acquire_shared(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.cta.shared.u64 %0, [%1];" : "=l"(value) : "r"(smem_address(word)) : "memory");
  return value;
}
__device__ __forceinline__ void store_release_shared(uint64_t* word, uint64_t value) {
  asm volatile("st.release.cta.shared.u64 [%0], %1;" ::"r"(smem_address(word)), "l"(value) : "memory");
}

}  // namespace tangram::ptx
