// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// One thread for each consumer warpgroup adds the warpgroup's staged dq to its accumulator tile. So consumers wait
// neither for turns of deterministic calls nor for an addition to complete.
#pragma once

#include "attn/sm90/backward/traits.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/system.cuh"
#include "cuda/ptx/tma.cuh"

namespace tangram::sm90::backward {

/// NOTE [turns] Work tiles are scheduled in the order of their tickets. The turn of a step at its accumulator tile is
/// the number of earlier steps that add to this tile. Earlier steps belong to work tiles with smaller tickets, or come
/// before in the walk of the same work tile. So a work tile waits only for work tiles scheduled before it, which a CTA
/// has finished or is working on. Among the work tiles in progress, the one with the smallest ticket never waits. No
/// deadlock, however few CTAs run.
template <typename Traits>
struct DqWriter {
  const Params& params;
  Smem<Traits>& smem;
  const uint32_t warpgroup;

  // Where the sums are not zeroed before, the first addition to half an accumulator tile stores. Without turns the
  // first writer claims that store, and others wait until it is complete; the store itself does not wait.
  static constexpr int32_t kClaimed = 1;
  static constexpr int32_t kDirectStore = 2;

  /// True for the one that stores; for others it returns when that is done.
  __device__ __forceinline__ bool claim(int32_t* count) {
    int32_t state = ptx::load_acquire(count);
    if (state == 0) {
      state = atomicCAS(count, 0, kClaimed);
      if (state == 0) return true;
    }
    while (state != kDirectStore) state = ptx::load_acquire(count);
    return false;
  }
  __device__ __forceinline__ void await_turn(int32_t* count, int32_t turn) {
    while (ptx::load_acquire(count) < turn) {
    }
  }

  /// Adds what is staged, or stores it, and waits until it has been read.
  static __device__ __forceinline__ void add(float* sums, const float* staged, uint32_t num_floats, bool first) {
    if (first) {
      ptx::bulk_store(sums, staged, num_floats * 4);
    } else {
      ptx::bulk_reduce_add_f32(sums, staged, num_floats * 4);
    }
    ptx::tma_store_commit();
    ptx::tma_store_wait_read<0>();
  }
  /// Once the addition is complete, lets the writers that wait for it go on.
  static __device__ __forceinline__ void announce_addition(int32_t* count, int32_t turn) {
    ptx::tma_store_wait<0>();
    ptx::fence_proxy_async_global();
    if constexpr (Traits::kAtOnce == 2) count[1] = kDirectStore;  // for the last kernel
    ptx::store_release(count, Traits::kDeterministic ? turn + 1 : kDirectStore);
  }

  __device__ __forceinline__ void run() {
    // Half of the columns of a step, or all of one of two steps, of which the first counter then speaks.
    using Dq = typename Traits::Dq;
    constexpr bool kEven = Traits::kAtOnce == 2 || Dq::kEven;
    constexpr uint32_t kEvenFloats = Traits::kAtOnce * Traits::kAccumTileFloats / 2;
    const uint32_t num_floats = kEven ? kEvenFloats : Dq::side_floats(warpgroup);
    const uint32_t half = Traits::kAtOnce == 2 ? 0 : warpgroup;
    const float* staged = smem.dq + (kEven ? warpgroup * kEvenFloats : Dq::side_begin(warpgroup));
    for (uint32_t step = 0;; ++step) {
      ptx::mbarrier_wait(&smem.dq_full[warpgroup], step % 2);
      const DqTarget target =
          smem.dq_target[(step * Traits::kAtOnce + (Traits::kAtOnce == 2 ? warpgroup : 0)) % Traits::kDqTargets];
      if (target.accum_tile == kDqStop) break;
      if (target.accum_tile == kDqNothing) {
        ptx::mbarrier_arrive(&smem.dq_empty[warpgroup]);
        continue;
      }
      int32_t* count = params.dq_semaphore + int64_t{target.accum_tile} * 2 + half;
      const int32_t turn = Traits::kDeterministic ? params.dq_order_segments[target.segment].turn : 0;
      bool first = false;
      if constexpr (Traits::kDeterministic) {
        await_turn(count, turn);
        first = turn == 0 && !smem.mask_info.zeroed_sums;
      } else if (!smem.mask_info.zeroed_sums) {
        first = claim(count);
      }
      float* sums = params.dq_sums + int64_t{target.accum_tile} * Traits::kAccumTileFloats +
                    (kEven ? half * kEvenFloats : Dq::side_begin(half));
      ptx::fence_proxy_async_global();  // what the acquire saw, before what the async proxy does
      add(sums, staged, num_floats, first);
      ptx::mbarrier_arrive(&smem.dq_empty[warpgroup]);
      if (first || Traits::kDeterministic) announce_addition(count, turn);
    }
    ptx::tma_store_wait<0>();
  }
};

}  // namespace tangram::sm90::backward
