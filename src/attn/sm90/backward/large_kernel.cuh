// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of LargeTraits. Warp roles, barriers, shared memory and step kinds are in the table of kernel.cuh.
#pragma once

#include <type_traits>

#include "attn/sm90/backward/kernel.cuh"
#include "attn/sm90/backward/packed_consumer.cuh"
#include "attn/sm90/backward/split_consumer.cuh"
#include "attn/sm90/backward/split_writer.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
struct ConsumerOf {
  using OfPart = std::conditional_t<Traits::kMakesDk, DkConsumer<Traits>, DvConsumer<Traits>>;
  using type = std::conditional_t<Traits::kMakesDk && Traits::kMakesDv, PackedConsumer<Traits>, OfPart>;
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) large_kernel(const __grid_constant__ Params params) {
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  begin_cta(params, smem);
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer<Traits> producer{params, smem};
      producer.run_work_tiles();
      ptx::grid_dependency_launch();
    } else if (threadIdx.x == 32 || threadIdx.x == 64) {
      if constexpr (Traits::kMakesDk && Traits::kDeterministic) {
        SplitWriter<Traits>(params, smem, threadIdx.x / 32 - 1).run();
      }
    } else if (threadIdx.x == 96 && params.ready_flags.pending != 0) {
      poll_ready_flags<false>(params.ready_flags, smem.arrived);
    }
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    typename ConsumerOf<Traits>::type consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90::backward
