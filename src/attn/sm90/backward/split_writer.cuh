// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Writer like DqWriter, in deterministic calls, for sums in pieces of 32 columns: a turn covers all pieces of a step.
#pragma once

#include "attn/sm90/backward/dq_writer.cuh"
#include "attn/sm90/backward/large_traits.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
struct SplitWriter : DqWriter<Traits> {
  using Layout = typename Traits::Dq;
  using Base = DqWriter<Traits>;

  __device__ SplitWriter(const Params& params_in, Smem<Traits>& smem_in, uint32_t warpgroup_in)
      : Base{params_in, smem_in, warpgroup_in} {}

  __device__ __forceinline__ void run() {
    const Params& params = this->params;
    Smem<Traits>& smem = this->smem;
    const uint32_t warpgroup = this->warpgroup;
    for (uint32_t step = 0;; ++step) {
      bool first = false;
      int32_t* count = nullptr;
      int32_t turn = 0;
#pragma unroll 1
      for (uint32_t p = 0; p < Layout::kPieces; ++p) {
        const uint32_t head_split = step * Layout::kPieces + p, slot = head_split % Traits::kDqSlots;
        ptx::mbarrier_wait(&smem.dq_full[warpgroup][slot], head_split / Traits::kDqSlots % 2);
        const DqTarget target = smem.dq_target[step % Traits::kDqTargets];
        if (target.accum_tile == kDqStop) {
          ptx::tma_store_wait<0>();
          return;
        }
        if (target.accum_tile != kDqNothing) {
          if (p == 0) {
            count = params.dq_semaphore + int64_t{target.accum_tile} * 2 + warpgroup;
            turn = params.dq_order_segments[target.segment].turn;
            this->await_turn(count, turn);
            first = turn == 0 && !smem.mask_info.zeroed_sums;
            ptx::fence_proxy_async_global();  // what the acquire saw, before what the async proxy does
          }
          float* sums = params.dq_sums + int64_t{target.accum_tile} * Traits::kAccumTileFloats +
                        Layout::column_piece(warpgroup, p) * Layout::kPieceFloats;
          Base::add(sums, smem.dq[warpgroup][slot], Layout::kPieceFloats, first);
        }
        ptx::mbarrier_arrive(&smem.dq_empty[warpgroup][slot]);
      }
      if (count != nullptr) Base::announce_addition(count, turn);
    }
  }
};

}  // namespace tangram::sm90::backward
