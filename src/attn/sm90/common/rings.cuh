// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Rings of stages in shared memory, between a producer and its consumers. A stage has a full and an empty mbarrier. The
// reader of entry i waits on full with the phase of i, its writer on empty with the other phase. So the first writers
// find every stage empty without an arrival.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace tangram::sm90 {

/// Where a thread is in a ring of any size. Where sizes are powers of two and rings go round together, one count says
/// all (Cursor, Rings).
template <int kStages>
struct RingPosition {
  int32_t stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ int32_t current() const { return stage; }
  __device__ __forceinline__ uint32_t parity() const { return phase; }
};

/// Stage and phase of a ring, in one register.
template <int kStages>
struct RingCount {
  static_assert((kStages & (kStages - 1)) == 0);
  uint32_t count = 0;
  __device__ __forceinline__ void advance() { ++count; }
  __device__ __forceinline__ int32_t current() const { return static_cast<int32_t>(count % kStages); }
  __device__ __forceinline__ uint32_t parity() const { return count / kStages % 2; }
};

/// Initialises the barriers of a ring for so many arrivals each. One thread; then fence_barrier_init().
template <int kStages>
__device__ __forceinline__ void init_ring(uint64_t (&full)[kStages], uint32_t full_arrivals, uint64_t (&empty)[kStages],
                                          uint32_t empty_arrivals) {
  for (int i = 0; i < kStages; ++i) {
    ptx::mbarrier_init(&full[i], full_arrivals);
    ptx::mbarrier_init(&empty[i], empty_arrivals);
  }
}

}  // namespace tangram::sm90
