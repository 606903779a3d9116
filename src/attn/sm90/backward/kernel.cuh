// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The backward kernel: dk, dv and the float32 sums of dq of every item, by a persistent grid. Warpgroup 0 loads (one
// thread of it), warpgroups 1 and 2 compute. Launched with Traits::kThreads threads and sizeof(Smem) bytes.
#pragma once

#include <type_traits>

#include "attn/sm90/backward/consumer.cuh"
#include "attn/sm90/backward/dq_writer.cuh"
#include "attn/sm90/backward/pair_consumer.cuh"
#include "attn/sm90/backward/producer.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
__device__ __forceinline__ void init_barriers(Smem<Traits>& smem) {
  for (int i = 0; i < Traits::kStages; ++i) {
    ptx::mbarrier_init(&smem.q_full[i], 1);
    ptx::mbarrier_init(&smem.dout_full[i], 1);
    ptx::mbarrier_init(&smem.step_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < Traits::kDsBuffers; ++i) ptx::mbarrier_init(&smem.ds_full[i], kConsumerWarps);
  if constexpr (Traits::kAtOnce == 2) {
    for (int i = 0; i < Traits::kDsBuffers; ++i) ptx::mbarrier_init(&smem.pairs.ds_empty[i], kConsumerWarps);
  }
  ptx::mbarrier_init(&smem.k_full, 1);
  ptx::mbarrier_init(&smem.v_full, 1);
  ptx::mbarrier_init(&smem.kv_empty, kConsumerWarps);
  for (int i = 0; i < 2; ++i) {
    ptx::mbarrier_init(&smem.dq_full[i], kConsumerWarps / 2);
    ptx::mbarrier_init(&smem.dq_empty[i], 1);
  }
  ptx::fence_barrier_init();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) backward_kernel(const __grid_constant__ Params params) {
  // Nothing else is in shared memory, so this is at its start, and addresses are constants.
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  if (threadIdx.x == 0) {
    smem.facts = facts_of(params);
    init_barriers(smem);
    smem.arrived.bits = 0;
  }
  fill_ones(smem);
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer<Traits> producer{params, smem};
      producer.run_items();
      ptx::grid_dependency_launch();  // only now: waiting CTAs would take multiprocessors that sm_margin leaves free
    } else if (threadIdx.x == 32 || threadIdx.x == 64) {
      DqWriter<Traits>{params, smem, threadIdx.x / 32 - 1}.run();
    } else if (threadIdx.x == 96 && params.arrivals.pending != 0) {
      watch_arrivals<false>(params.arrivals, smem.arrived);
    }
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    std::conditional_t<Traits::kAtOnce == 2, PairConsumer<Traits>, Consumer<Traits>> consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90::backward
