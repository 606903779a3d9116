// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What consumer warpgroups do together, on named barriers.
#pragma once

#include <cstdint>

#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90 {

/// Makes what this warpgroup has written to shared memory visible to its matmuls and bulk stores.
__device__ __forceinline__ void publish_writes(uint32_t barrier) {
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(barrier, 128);
}

/// Turns of the consumer warpgroups to queue matmuls, in a circle. While one feeds the tensor cores, the others have
/// time for exponentials. Before the first turn some thread must pass it.
template <uint32_t kFirst>
struct PingPong {
  static constexpr uint32_t kThreads = 256;  // of who passes and who takes
  static __device__ __forceinline__ void take(uint32_t warpgroup) {
    ptx::named_barrier_sync(kFirst + warpgroup, kThreads);
  }
  static __device__ __forceinline__ void pass_to(uint32_t warpgroup) {
    ptx::named_barrier_arrive(kFirst + warpgroup, kThreads);
  }
};

}  // namespace tangram::sm90
