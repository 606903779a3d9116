// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The forward kernel computes out and lse of every work tile. Persistent grid of one CTA a multiprocessor,
// Traits::kThreads threads, sizeof(ForwardSmem) bytes. C consumer warpgroups: 2 or 3 (ForwardShape). Why it is built
// so: docs/design/forward_sm90.md.
//
// Warp roles                                                                           registers, C = 2 (3)
//   warpgroup 0, thread 0    Producer: walks the runs of a work tile, TMA loads, messages    40 (32)
//                or warp 0   same for gathered ranges, a box of keys per lane      40 (72 at head_dim 64; 32 aligned)
//                thread 32   run_scheduler: draws tickets, one work tile ahead
//                thread 64   poll_ready_flags, if keys are awaited
//                thread 96   kMetadataWarp: step messages; thread 0 then only loads
//   warpgroups 1 to C        Consumer: 64 packed rows each                               232 (160)
//
// mbarriers                  arrivals                  a phase ends when
//   q_full[stage]            1 and bytes               Q and WorkTileRows of a work tile are there
//   q_empty[stage]           C                         each warpgroup's rows have been stored from the stage
//                            4 C (kSingleStageQ)       all scores of the work tile have been made
//   k_full[stage]            1 and bytes (*)           K and the message of a step are there; (*) + 1: kMetadataWarp
//   k_empty[stage]           4 C consumer warps        its scores are not needed again
//   v_full[stage]            1 and bytes               V of the step is there
//   v_empty[stage]           4 C consumer warps        it has been multiplied
//   work_full[slot]          1                         the scheduler has written a work tile
//   work_empty[slot]         1, 2 (kMetadataWarp)      its walkers have finished it
// Named barriers, one for each warpgroup. From 1 on: its turn (PingPong). From C + 1: its zeros in V, or its rows of
// out, are written. From 2 C + 1: it agrees on lazy rescaling.
//
// Shared memory (ForwardSmem)
//   q                        kStagesQ tiles of 64 C rows; with more than one the rows of out leave from there
//   k, v                     kStagesK and kStagesV tiles of kBlockN keys
//   step, work_tiles, work   messages: StepMessage of a step of K, WorkTileRows of a work tile of Q, WorkMessage
//   intervals                visible keys of each row in the current key range; owned by the row's warp
//   seen, local_range        state of the producer warpgroup that does not fit its registers
//   arrived                  which awaited keys are readable
//
// Step kinds (StepKind, a sum of them in the word of each warpgroup): kStepSteady, kStepFirst, kStepNewRun, kStepTail,
// kStepStop. How a consumer takes a step follows from that and from what it has pending: see ConsumerSteps.
#pragma once

#include "attn/sm90/forward/consumer.cuh"
#include "attn/sm90/forward/packing.cuh"
#include "attn/sm90/forward/producer.cuh"
#include "attn/sm90/forward/scheduler.cuh"
#include "attn/sm90/forward/traits.cuh"

namespace tangram::sm90 {

template <typename Traits>
__device__ __forceinline__ void init_barriers(ForwardSmem<Traits>& smem) {
  constexpr int kConsumerWarps = 4 * Traits::kConsumers;
  init_ring(smem.q_full, 1, smem.q_empty, Traits::kSingleStageQ ? kConsumerWarps : Traits::kConsumers);
  init_ring(smem.k_full, Traits::kMetadataWarp ? 2 : 1, smem.k_empty, kConsumerWarps);
  init_ring(smem.v_full, 1, smem.v_empty, kConsumerWarps);
  init_ring(smem.work_full, 1, smem.work_empty, Traits::kMetadataWarp ? 2 : 1);
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
    ptx::prefetch_tensor_map(&params.k_local_map);
    ptx::prefetch_tensor_map(&params.v_local_map);
    ptx::prefetch_tensor_map(&params.out_map);
    init_barriers(smem);
    smem.arrived.bits = 0;
  }
  if constexpr (Traits::kAnyGqaRatio) clear_unused_rows<Traits>(params, smem);
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::register_decrease<Traits::kProducerRegisters>();
    if (Traits::kGathered ? threadIdx.x < 32 : threadIdx.x == 0) {
      ptx::grid_dependency_wait();
      // Split-KV: CTAs of the combine kernel, launched now, would wait on multiprocessors that sm_margin keeps free.
      if constexpr (Traits::kAnyDim) {
        if (params.part_rows == nullptr) ptx::grid_dependency_launch();
      } else if constexpr (!Traits::kSplitKv) {
        ptx::grid_dependency_launch();
      }
      Producer<Traits, true, !Traits::kMetadataWarp> producer{params, smem, {}};
      producer.run();
      if constexpr (Traits::kSplitKv) ptx::grid_dependency_launch();
    } else if (threadIdx.x == 32) {
      run_scheduler(params, smem);
    } else if (threadIdx.x == 64 && params.ready_flags.pending != 0) {
      ptx::grid_dependency_wait();
      poll_ready_flags<true>(params.ready_flags, smem.arrived);
    } else if (Traits::kMetadataWarp && threadIdx.x == 96) {
      Producer<Traits, false, true> metadata_warp{params, smem, {}};
      metadata_warp.run();
    }
  } else {
    ptx::register_increase<Traits::kConsumerRegisters>();
    ptx::grid_dependency_wait();
    Consumer<Traits> consumer(params, smem);
    consumer.run();
  }
}

}  // namespace tangram::sm90
