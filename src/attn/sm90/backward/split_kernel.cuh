// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The two kernels of SplitTraits, one for dk and dq, one for dv. Warp roles, barriers, shared memory and step kinds are
// in the table of kernel.cuh.
#pragma once

#include <type_traits>

#include "attn/sm90/backward/kernel.cuh"
#include "attn/sm90/backward/split_consumer.cuh"
#include "attn/sm90/backward/split_dq_writer.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) split_kernel(const __grid_constant__ Params params) {
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  begin_cta(params, smem);
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
    consumer.run();
  }
}

}  // namespace tangram::sm90::backward
