// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Bulk tensor copies (TMA) between global and shared memory, and the proxy fences that go with them.
// PTX ISA, "Data Movement and Conversion Instructions: Bulk and Tensor copy".
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace tangram::ptx {

/// Fetches a tensor map (128 bytes, in global or kernel-parameter memory) into the descriptor cache.
__device__ __forceinline__ void prefetch_tensor_map(const void* tensor_map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

/// Loads the 4-D box at (c0, c1, c2, c3), innermost coordinate first, into shared memory at `destination` and counts
/// its bytes on `barrier`. Parts of the box outside the tensor are filled with zeros and counted too. One thread.
__device__ __forceinline__ void tma_load_4d(void* destination, const void* tensor_map, uint64_t* barrier, int32_t c0,
                                            int32_t c1, int32_t c2, int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(smem_address(destination)),
      "l"(tensor_map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Like tma_load_4d, into the same offsets of every CTA of the cluster whose bit is set in `cta_mask`.
__device__ __forceinline__ void tma_load_4d_multicast(void* destination, const void* tensor_map, uint64_t* barrier,
                                                      uint16_t cta_mask, int32_t c0, int32_t c1, int32_t c2,
                                                      int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(smem_address(destination)),
      "l"(tensor_map), "r"(smem_address(barrier)), "h"(cta_mask), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Loads `num_bytes` (a multiple of 16) from global `source`, 16-byte aligned, and counts them on `barrier`. One
/// thread.
__device__ __forceinline__ void bulk_load(void* destination, const void* source, uint32_t num_bytes,
                                          uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_address(destination)),
               "l"(source), "r"(num_bytes), "r"(smem_address(barrier))
               : "memory");
}

/// Stores the 4-D box at (c0, c1, c2, c3) from shared memory; parts outside the tensor are dropped. One thread; the
/// writes to `source` must have been made visible with fence_proxy_async(). Completion: tma_store_commit / wait.
__device__ __forceinline__ void tma_store_4d(const void* tensor_map, const void* source, int32_t c0, int32_t c1,
                                             int32_t c2, int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(tensor_map),
      "r"(smem_address(source)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Like tma_store_4d, adding to global memory (in the tensor map's element type, order among adders unspecified).
__device__ __forceinline__ void tma_reduce_add_4d(const void* tensor_map, const void* source, int32_t c0, int32_t c1,
                                                  int32_t c2, int32_t c3) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          tensor_map),
      "r"(smem_address(source)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Stores `num_bytes` (a multiple of 16) at `source` to global memory at `destination`, both 16-byte aligned.
__device__ __forceinline__ void bulk_store(void* destination, const void* source, uint32_t num_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
               "r"(smem_address(source)), "r"(num_bytes)
               : "memory");
}

/// Adds `num_bytes` (a multiple of 16) of float32 at `source` to global memory at `destination`, both 16-byte aligned.
__device__ __forceinline__ void bulk_reduce_add_f32(float* destination, const void* source, uint32_t num_bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
               "r"(smem_address(source)), "r"(num_bytes)
               : "memory");
}

/// Closes the group of bulk stores that this thread issued so far.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until at most kPending groups still read their shared-memory source.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until at most kPending groups are incomplete (their writes made).
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Orders this thread's ordinary shared-memory accesses before later ones of the async proxy (wgmma, TMA).
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace tangram::ptx
