// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The backward kernel for token indices: dq of every work tile, and sums of dk and dv. Persistent grid of one CTA a
// multiprocessor, Traits::kThreads threads, sizeof(Traits::SmemType) bytes. Barriers, shared memory and what consumers
// do in which order are those of query_backward/kernel.cuh; why it is built so: docs/design/tokens.md.
//
// Warp roles                                                                       registers
//   warpgroup 0              Producer: 32 rows of K and V of a step a warp         40
//                thread 0    Planner: draws work tiles, writes messages, loads Q, dout
//   warpgroups 1 and 2       Consumer: 64 keys of a step each, and dq of 64 rows   232
//
// k_full and v_full have kProducerWarps arrivals and no bytes: a warp arrives when the copies of all its lanes are
// there.
#pragma once

#include "attn/sm90/query_backward/kernel.cuh"
#include "attn/sm90/token_backward/consumer.cuh"
#include "attn/sm90/token_backward/producer.cuh"

namespace tangram::sm90::token_backward {

/// Rows of work tiles that are no heads, and are never loaded, are zeros for good.
template <typename Smem>
__device__ __forceinline__ void clear_rows(Smem& smem) {
  static_assert(sizeof(smem.q) == sizeof(smem.dout));
  for (uint32_t i = threadIdx.x; i < sizeof(smem.q) / sizeof(uint4); i += query_backward::kConsumerThreads + 128) {
    reinterpret_cast<uint4*>(smem.q)[i] = uint4{};
    reinterpret_cast<uint4*>(smem.dout)[i] = uint4{};
  }
  ptx::fence_proxy_async();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) token_backward_kernel(const __grid_constant__ Params params) {
  // Nothing else is in shared memory, so this is at its start, and addresses are constants.
  auto& smem = *static_cast<typename Traits::SmemType*>(ptx::dynamic_shared_memory());
  if (threadIdx.x == 0) query_backward::init_barriers(smem, kProducerWarps);
  backward::fill_ones(smem);
  clear_rows(smem);
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    Producer<Traits> producer(params, smem);
    producer.run();
    if (threadIdx.x == 0) ptx::grid_dependency_launch();  // not earlier: see query_backward_kernel
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    Consumer<Traits> consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90::token_backward
