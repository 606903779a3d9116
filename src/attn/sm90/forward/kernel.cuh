// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The forward kernel: persistent, one producer warpgroup and two consumer warpgroups (three up to head_dim 64). See
// docs/design/forward_sm90.md.
#pragma once

#include "attn/sm90/forward/consumer.cuh"
#include "attn/sm90/forward/producer.cuh"
#include "attn/sm90/forward/traits.cuh"

namespace tangram::sm90 {

template <typename Traits>
__device__ __forceinline__ void init_barriers(ForwardSmem<Traits>& smem) {
  constexpr int kConsumerWarps = 4 * Traits::kConsumers;
  for (int i = 0; i < Traits::kStagesQ; ++i) {
    ptx::mbarrier_init(&smem.q_full[i], 1);
    ptx::mbarrier_init(&smem.q_empty[i], Traits::kConsumers);
  }
  for (int i = 0; i < Traits::kStagesK; ++i) {
    ptx::mbarrier_init(&smem.k_full[i], Traits::kScribe ? 2 : 1);
    ptx::mbarrier_init(&smem.k_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < Traits::kStagesV; ++i) {
    ptx::mbarrier_init(&smem.v_full[i], 1);
    ptx::mbarrier_init(&smem.v_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < Traits::kWorkSlots; ++i) {
    ptx::mbarrier_init(&smem.work_full[i], 1);
    ptx::mbarrier_init(&smem.work_empty[i], Traits::kScribe ? 2 : 1);
  }
  ptx::fence_barrier_init();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    forward_kernel(const __grid_constant__ typename Traits::Params params) {
  ForwardSmem<Traits>& smem = *static_cast<ForwardSmem<Traits>*>(ptx::dynamic_shared_memory());
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&params.q_map);
    ptx::prefetch_tensor_map(&params.k_map);
    ptx::prefetch_tensor_map(&params.v_map);
    ptx::prefetch_tensor_map(&params.k_elsewhere_map);
    ptx::prefetch_tensor_map(&params.v_elsewhere_map);
    ptx::prefetch_tensor_map(&params.out_map);
    init_barriers(smem);
    smem.arrived.bits = 0;
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    if (threadIdx.x == 0) {
      ptx::grid_dependency_wait();
      // CTAs of the kernel that merges parts would wait on multiprocessors that sm_margin leaves free.
      if constexpr (Traits::kAnyDim) {
        if (params.part_rows == nullptr) ptx::grid_dependency_launch();
      } else if constexpr (!Traits::kParts) {
        ptx::grid_dependency_launch();
      }
      Producer<Traits, true, !Traits::kScribe> producer{params, smem, {}};
      producer.run();
      if constexpr (Traits::kParts) ptx::grid_dependency_launch();
    } else if (threadIdx.x == 32) {
      run_scheduler(params, smem);
    } else if (threadIdx.x == 64 && params.arrivals.pending != 0) {
      ptx::grid_dependency_wait();
      watch_arrivals<true>(params.arrivals, smem.arrived);
    } else if (Traits::kScribe && threadIdx.x == 96) {
      Producer<Traits, false, true> scribe{params, smem, {}};
      scribe.run();
    }
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    ptx::grid_dependency_wait();
    Consumer<Traits> consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90
