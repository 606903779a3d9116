// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The backward kernel for gathered keys: dq of every work tile, and sums of dk and dv. Persistent grid of one CTA a
// multiprocessor, Traits::kThreads threads, sizeof(Smem) bytes. Why it is built so: docs/design/backward_sm90.md.
//
// Warp roles                                                                       registers
//   warpgroup 0, thread 0    Planner: draws work tiles, writes messages                 24
//                thread 32   Loader of K and of what a work tile brings
//                thread 64   Loader of V
//   warpgroups 1 and 2       Consumer: 64 keys of a step each, and dq of 64 rows   240
//
// mbarriers                  arrivals            a phase ends when
//   planned[stage]           1                   the message of a step is there
//   q_full, dout_full        1 and bytes         Q and row statistics, dout of a work tile are there
//   work_tile_empty               8 consumer warps    its last dK has been multiplied
//   k_full[stage]            1 and bytes         K of a step is there
//   k_empty[stage]           8 consumer warps    dQ of the step has been multiplied, and its message read
//   v_full, v_empty          1 and bytes; 8      V of a step is there; has been multiplied
//   ds_full[buffer]          8 consumer warps    both warpgroups have written dS of a step
//
// Shared memory (Smem)
//   q, dout                  128 packed rows of a work tile
//   k, v                     kStagesK tiles of kKeys gathered keys, one tile
//   stats, ones              -lse and -delta of the rows, as columns of S and dP; what keys have there
//   step, work_tile          messages; the planner's work tile
//   ds                       kDsBuffers times dS, keys by rows
//
// Step kinds (StepKind, a sum of them in StepMessage::kind): kStepFirst, kStepLast, kStepOddWorkTile, kStepStop.
#pragma once

#include "attn/sm90/backward/producer.cuh"
#include "attn/sm90/query_backward/consumer.cuh"
#include "attn/sm90/query_backward/producer.cuh"

namespace tangram::sm90::query_backward {

/// `loaders`: who arrive on k_full and v_full.
template <typename Traits>
__device__ __forceinline__ void init_barriers(Smem<Traits>& smem, uint32_t loaders = 1) {
  for (uint64_t& barrier : smem.planned) ptx::mbarrier_init(&barrier, 1);
  ptx::mbarrier_init(&smem.q_full, 1);
  ptx::mbarrier_init(&smem.dout_full, 1);
  ptx::mbarrier_init(&smem.work_tile_empty, kConsumerWarps);
  init_ring(smem.k_full, loaders, smem.k_empty, kConsumerWarps);
  ptx::mbarrier_init(&smem.v_full, loaders);
  ptx::mbarrier_init(&smem.v_empty, kConsumerWarps);
  for (uint64_t& barrier : smem.ds_full) ptx::mbarrier_init(&barrier, kConsumerWarps);
  ptx::fence_barrier_init();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) query_backward_kernel(const __grid_constant__ Params params) {
  // Nothing else is in shared memory, so this is at its start, and addresses are constants.
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  if (threadIdx.x == 0) init_barriers(smem);
  backward::fill_ones(smem);
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    ptx::grid_dependency_wait();
    if (threadIdx.x == 0) {
      Planner<Traits> planner{params, smem};
      planner.run();
      ptx::grid_dependency_launch();  // only now: waiting CTAs would take multiprocessors that sm_margin leaves free
    } else if (threadIdx.x == 32) {
      Loader<Traits, false>{params, smem}.run();
    } else if (threadIdx.x == 64) {
      Loader<Traits, true>{params, smem}.run();
    }
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    Consumer<Traits> consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90::query_backward
