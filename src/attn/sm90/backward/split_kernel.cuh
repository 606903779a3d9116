// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The two kernels of SplitTraits, with the roles of backward_kernel.
#pragma once

#include <type_traits>

#include "attn/sm90/backward/producer.cuh"
#include "attn/sm90/backward/split_consumer.cuh"
#include "attn/sm90/backward/split_dq_writer.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
__device__ __forceinline__ void init_split_barriers(Smem<Traits>& smem) {
  for (int i = 0; i < Traits::kStages; ++i) {
    ptx::mbarrier_init(&smem.q_full[i], 1);
    ptx::mbarrier_init(&smem.dout_full[i], 1);
    ptx::mbarrier_init(&smem.step_empty[i], kConsumerWarps);
  }
  ptx::mbarrier_init(&smem.ds_full, kConsumerWarps);
  ptx::mbarrier_init(&smem.ds_empty, kConsumerWarps);
  ptx::mbarrier_init(&smem.k_full, 1);
  ptx::mbarrier_init(&smem.v_full, 1);
  ptx::mbarrier_init(&smem.kv_empty, kConsumerWarps);
  for (int side = 0; side < 2; ++side) {
    for (int i = 0; i < Traits::kDqSlots; ++i) {
      ptx::mbarrier_init(&smem.dq_full[side][i], kConsumerWarps / 2);
      ptx::mbarrier_init(&smem.dq_empty[side][i], 1);
    }
  }
  ptx::fence_barrier_init();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) split_kernel(const __grid_constant__ Params params) {
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  if (threadIdx.x == 0) {
    smem.facts = facts_of(params);
    init_split_barriers(smem);
    smem.arrived.bits = 0;
  }
  fill_ones(smem);
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer<Traits> producer{params, smem};
      producer.run_items();
      ptx::grid_dependency_launch();
    } else if (Traits::kMakesDk && (threadIdx.x == 32 || threadIdx.x == 64)) {
      if constexpr (Traits::kMakesDk) SplitDqWriter<Traits>(params, smem, threadIdx.x / 32 - 1).run();
    } else if (threadIdx.x == 96 && params.arrivals.pending != 0) {
      watch_arrivals<false>(params.arrivals, smem.arrived);
    }
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    std::conditional_t<Traits::kMakesDk, DkConsumer<Traits>, DvConsumer<Traits>> consumer(params, smem);
    consumer.run_items(consumer);
  }
}

}  // namespace tangram::sm90::backward
