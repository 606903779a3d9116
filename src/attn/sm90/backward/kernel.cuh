// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The backward kernel computes dk, dv and the float32 sums of dq of every work tile. Persistent grid of one CTA a
// multiprocessor, Traits::kThreads threads, sizeof(Smem) bytes. What the kernels of LargeTraits (large_kernel.cuh) have
// otherwise stands in brackets. See docs/design/backward_sm90.md.
//
// Warp roles                                                                                     registers
//   warpgroup 0, thread 0       Producer: draws work tiles, TMA loads, writes messages                  24
//                thread 32, 64  DqWriter: adds what consumer warpgroup 0, 1 has staged of dq to its accumulator tile
//                               [deterministic: SplitWriter; else idle]
//                thread 96      with awaited keys: poll_ready_flags
//   warpgroup 1, 2              Consumer, or PairConsumer, 64 keys each                            240
//                               [PackedConsumer; or DkConsumer and DvConsumer, a kernel each]
//
// mbarriers                     arrivals            a phase ends when
//   q_full[stage]               1 and bytes         Q, its row statistics and the message of a step are there
//   dout_full[stage]            1 and bytes         dout of the step is there
//   step_empty[stage]           8 consumer warps    all are done with both
//   k_full, v_full              1 and bytes         K, V of a work tile are there [dv: K alone]
//   kv_empty                    8 consumer warps    the last matmul of the work tile has read them
//   ds_full[buffer]             8 consumer warps    dS of a step, or a pair of steps, is written
//   ds_empty[buffer]            8 consumer warps    it has been multiplied; pairs only, see Smem::ds [always]
//   dout_empty                  8 consumer warps    [kSingleStageDout: dP of the step is made]
//   dq_full[warpgroup]          4 warps             its dq of a step is staged [deterministic: of a piece in a slot]
//   dq_empty[warpgroup]         1                   its writer has read it [likewise]
// Named barriers: 1, 2 a warpgroup's zeros are written; 3, 4 its turn (PingPong); 5 pieces of a work tile meet
// (join_pieces).
//
// Shared memory (Smem)
//   k, v                        of the work tile: 128 keys
//   q, dout                     rings of kStages steps of 64 queries, as are stats and step
//   ds                          kDsBuffers times dS, keys by queries
//   ones                        what keys have where the queries have their row statistics
//   stats                       -lse and -delta of the queries, as columns of S and dP
//   dq                          staged for the writers
//   step, work_tile             messages: StepMessage of a step, WorkTile of the step's work tile
//   dq_target, facts, ...       what the service threads keep for lack of registers
//
// Step kinds (StepKind, a sum of them in StepMessage::kind): kStepPlain, kStepMasked, kStepZeroRows, kStepAbsent,
// kStepStop.
#pragma once

#include <type_traits>

#include "attn/sm90/backward/consumer.cuh"
#include "attn/sm90/backward/dq_writer.cuh"
#include "attn/sm90/backward/pair_consumer.cuh"
#include "attn/sm90/backward/producer.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
__device__ __forceinline__ void init_barriers(Smem<Traits>& smem) {
  constexpr bool kLarge = Traits::kShape.backward_large;
  for (int i = 0; i < Traits::kStages; ++i) {
    ptx::mbarrier_init(&smem.q_full[i], 1);
    ptx::mbarrier_init(&smem.dout_full[i], 1);
    ptx::mbarrier_init(&smem.step_empty[i], kConsumerWarps);
  }
  if constexpr (kLarge) {
    for (int i = 0; i < Traits::kDsBuffers; ++i) {
      ptx::mbarrier_init(&smem.ds_full[i], kConsumerWarps);
      ptx::mbarrier_init(&smem.ds_empty[i], kConsumerWarps);
    }
  } else {
    for (int i = 0; i < Traits::kDsBuffers; ++i) ptx::mbarrier_init(&smem.ds_full[i], kConsumerWarps);
    if constexpr (Traits::kAtOnce == 2) {
      for (int i = 0; i < Traits::kDsBuffers; ++i) ptx::mbarrier_init(&smem.pairs.ds_empty[i], kConsumerWarps);
    }
  }
  ptx::mbarrier_init(&smem.k_full, 1);
  ptx::mbarrier_init(&smem.v_full, 1);
  ptx::mbarrier_init(&smem.kv_empty, kConsumerWarps);
  if constexpr (kLarge) {
    for (int side = 0; side < 2; ++side) init_ring(smem.dq_full[side], kConsumerWarps / 2, smem.dq_empty[side], 1);
    if constexpr (Traits::kSingleStageDout) ptx::mbarrier_init(&smem.lone.dout_empty, kConsumerWarps);
  } else {
    init_ring(smem.dq_full, kConsumerWarps / 2, smem.dq_empty, 1);
  }
  ptx::fence_barrier_init();
}

/// Initialization by the first warps, before the roles part.
template <typename Traits>
__device__ __forceinline__ void begin_cta(const Params& params, Smem<Traits>& smem) {
  if (threadIdx.x == 0) {
    smem.mask_info = mask_info_of(params);
    init_barriers(smem);
    smem.arrived.bits = 0;
  }
  fill_ones(smem);
  __syncthreads();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) backward_kernel(const __grid_constant__ Params params) {
  // Nothing else is in shared memory, so this is at its start, and addresses are constants.
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  begin_cta(params, smem);
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer<Traits> producer{params, smem};
      producer.run_work_tiles();
      ptx::grid_dependency_launch();  // only now: waiting CTAs would take multiprocessors that sm_margin leaves free
    } else if (threadIdx.x == 32 || threadIdx.x == 64) {
      DqWriter<Traits>{params, smem, threadIdx.x / 32 - 1}.run();
    } else if (threadIdx.x == 96 && params.ready_flags.pending != 0) {
      poll_ready_flags<false>(params.ready_flags, smem.arrived);
    }
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    std::conditional_t<Traits::kAtOnce == 2, PairConsumer<Traits>, Consumer<Traits>> consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90::backward
