// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The backward kernel computes dk, dv and the float32 sums of dq of every work tile. Persistent grid of one CTA a
// multiprocessor, kThreads threads, sizeof(Smem) bytes. K stays in shared memory, V there or in registers, dk and dv in
// registers.
#pragma once

#include <type_traits>

#include "attn/sm80/backward/own_keys.cuh"
#include "attn/sm80/backward/shared_scores.cuh"

namespace tangram::sm80::backward {

template <typename Traits>
__device__ __forceinline__ void run_work_tiles(const Params& params, Smem<Traits>& smem) {
  using Cta = std::conditional_t<Traits::kOwnKeys, OwnKeysCta<Traits>, SharedScoresCta<Traits>>;
  Cta cta(params, smem);
  if (threadIdx.x == 0) {
    smem.mask_info =
        params.mask_info != nullptr ? *params.mask_info : BackwardMaskInfo{params.num_work_tiles, params.walk, true};
    smem.arrived.bits = 0;
  }
  __syncthreads();
  int32_t ticket = static_cast<int32_t>(blockIdx.x);
  while (ticket < smem.mask_info.num_work_tiles) {
    __syncthreads();  // the work tile before has ended
    if (threadIdx.x < sizeof(WorkTile) / 16) {
      reinterpret_cast<uint4*>(&smem.work_tile)[threadIdx.x] =
          reinterpret_cast<const uint4*>(params.work_tiles + ticket)[threadIdx.x];
    }
    if (threadIdx.x == 0) smem.ticket = atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x);
    __syncthreads();
    clear(cta.dk);
    clear(cta.dv);
    if (smem.work_tile.num_steps > 0) cta.walk_queries();
    write_gradients(params, smem, cta.warp, cta.lane, cta.dk, cta.dv);
    ticket = smem.ticket;
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(const __grid_constant__ Params params) {
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  run_work_tiles<Traits>(params, smem);
}

}  // namespace tangram::sm80::backward
