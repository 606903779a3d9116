// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The forward kernel for token indices: out and lse of every work tile, a query with up to 64 or 128 query heads of one
// K/V head. Persistent grid, Traits::kThreads threads, sizeof(Smem) bytes. Why it is built so:
// docs/design/tokens.md.
//
// Warp roles                                                         registers
//   warpgroup 0            Producer: copies rows of K, V and Q       72
//   warpgroups 1 (and 2)   Consumer: 64 query heads each             184 (216)
//
// mbarriers        arrivals            a phase ends when
//   full[stage]    4 producer warps    K and V of a step, with the first of a work tile Q, are there
//   empty[stage]   the consumer warps  they have been multiplied
//   q_empty        the consumer warps  Q of a work tile is in registers
//
// Shared memory (Smem)
//   q              query heads of a work tile, zeros behind them
//   k, v           kStages times kKeys gathered keys, zeros where a slot has none
//   missing        which slots have none
#pragma once

#include "attn/sm90/common/rings.cuh"
#include "attn/sm90/tokens/consumer.cuh"
#include "attn/sm90/tokens/producer.cuh"
#include "cuda/ptx/memory.cuh"

namespace tangram::sm90::tokens {

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtas) token_kernel(const __grid_constant__ Params params) {
  // Nothing else is in shared memory, so this is at its start, and addresses are constants.
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  if (threadIdx.x == 0) {
    init_ring(smem.full, 4, smem.empty, Traits::kConsumerWarps);
    ptx::mbarrier_init(&smem.q_empty, Traits::kConsumerWarps);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    Producer<Traits> producer(params, smem);
    producer.run();
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    Consumer<Traits> consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90::tokens
