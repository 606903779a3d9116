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
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(const __grid_constant__ Params params) {
  using Cta = std::conditional_t<Traits::kOwnKeys, OwnKeysCta<Traits>, SharedScoresCta<Traits>>;
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  Cta cta(params, smem);
  run_work_tiles(cta, [&] {
    clear(cta.dk);
    clear(cta.dv);
    if (cta.work().num_steps > 0) cta.walk_queries();
    write_gradients<Traits>(params, smem.work, cta.warp, cta.lane, cta.dk, cta.dv);
  });
}

}  // namespace tangram::sm80::backward
