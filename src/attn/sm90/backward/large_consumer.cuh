// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What the consumer warpgroups of LargeTraits have in common, each for 64 of a work tile's keys, as Consumer.
#pragma once

#include "attn/sm90/backward/consumer_base.cuh"
#include "attn/sm90/backward/large_traits.cuh"

namespace tangram::sm90::backward {

/// The walk over work tiles, and what all have of a step.
template <typename Traits>
struct LargeConsumer : ConsumerBase<Traits> {
  using Base = ConsumerBase<Traits>;
  using typename Base::Packed;
  using typename Base::Scores;
  using Element = typename Traits::Element;
  using Base::arrive;
  using Base::here;
  using Base::params;
  using Base::smem;
  using Base::warpgroup;

  __device__ LargeConsumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  /// 0, which the compiler takes for a value that changes with the step. Otherwise it would keep descriptors that do
  /// not depend on a stage in registers that the accumulators need.
  __device__ __forceinline__ uint32_t nothing() const { return Traits::kStages == 1 ? here.step >> 31 << 4 : 0; }

  /// Starts S of the step at hand, once its queries are there.
  __device__ __forceinline__ void issue_scores(Scores& s) {
    await_queries();
    multiply_scores(s);
  }
  __device__ __forceinline__ void await_queries() {
    const uint32_t stage = here.stage();
    ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
    if (params.covered_queries && smem.step[stage].kind & kStepZeroRows) this->zero_step(stage);
  }
  __device__ __forceinline__ void multiply_scores(Scores& s) {
    const uint32_t stage = here.stage();
    this->template issue_product<Traits::kSoftcap ? Base::kNoTerms : 0>(s, smem.k + nothing(), smem.q[stage],
                                                                        smem.stats[stage]);
  }
  __device__ __forceinline__ void await_dout() {
    ptx::mbarrier_wait(&smem.dout_full[here.stage()], here.stage_phase());
  }
  /// s becomes P or, with softcap, P times the derivative of the cap; packed is P.
  __device__ __forceinline__ void make_p(Scores& s, Packed& packed) {
    const StepMessage& message = smem.step[here.stage()];
    const bool masked = message.kind & kStepMasked;
    const uint32_t visible = masked ? this->visible_scores(message) : 0;
    if constexpr (Traits::kSoftcap) {
      this->exponentiate_capped(s, packed, masked, visible);
    } else {
      this->exponentiate(s, masked, visible);
      if constexpr (Traits::kMakesDv) pack_operand<Element>(packed, s);
    }
  }

  /// Waits for K, and for V where it is needed, of the work tile at hand.
  __device__ __forceinline__ void await_keys_of(const WorkTile& work_tile) {
    const uint32_t kv_phase = work_tile.flags & kWorkTileOddPhase ? 1 : 0;
    ptx::mbarrier_wait(&smem.k_full, kv_phase);
    if constexpr (Traits::kMakesDk) ptx::mbarrier_wait(&smem.v_full, kv_phase);
    if (work_tile.flags & kWorkTileZeroRows) {
      this->zero_rows(smem.k, kBlockN, work_tile.covered);
      if constexpr (Traits::kMakesDk) this->template zero_rows<Traits::kPanelsV>(smem.v, kBlockN, work_tile.covered);
      this->zero_done();
    }
  }

  /// `self`: this, as what it is.
  template <typename Self>
  __device__ __forceinline__ void run_work_tiles(Self& self) {
    for (;;) {
      const uint32_t stage = here.stage();
      ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
      if (smem.step[stage].kind & kStepStop) break;
      const WorkTile& work_tile = smem.work_tile[smem.step[stage].work_tile_slot];
      self.clear_sums();
      if (work_tile.num_steps == 0) {
        self.skip_step();
      } else {
        await_keys_of(work_tile);
        self.run_steps(work_tile.num_steps);
      }
      write_gradients<Traits>(params, work_tile, this->fresh_thread(), this->dk, this->dv);
      __syncwarp();  // see Consumer::run
    }
    self.stop();
  }
};

/// Consumers that make dq. They add it to its accumulator tile in pieces of 32 columns (DqLayout), or hand it over in
/// deterministic calls.
template <typename Traits>
struct PieceConsumer : LargeConsumer<Traits> {
  using Base = LargeConsumer<Traits>;
  using Base::arrive;
  using Base::here;
  using Base::smem;
  using Base::warpgroup;
  using Layout = typename Traits::Dq;

  __device__ PieceConsumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  /// Starts dq of kColumns columns that begin `bytes` into the panels of K.
  template <int kColumns>
  __device__ __forceinline__ void issue_dq_part(float (&dq)[kColumns / 2], uint32_t buffer, uint32_t bytes) {
    this->template issue_dq_columns<kColumns>(dq, ptx::smem_address(smem.ds[buffer]) + this->nothing(),
                                              ptx::smem_address(smem.k) + bytes + this->nothing());
  }
  /// Where this warpgroup's columns begin: the lead in the first or last panel, the rest in between, a whole panel or
  /// half of one.
  __device__ __forceinline__ uint32_t lead_bytes() const {
    return warpgroup * (Traits::kPanelsQk - 1) * Traits::kPanelBytesK;
  }
  __device__ __forceinline__ uint32_t rest_bytes() const {
    constexpr uint32_t kNext = Layout::kRest == 32 ? 64 : Traits::kPanelBytesK;
    return Traits::kPanelBytesK + warpgroup * kNext;
  }

  __device__ __forceinline__ uint64_t* piece_barrier(uint64_t (&barriers)[2][Traits::kDqSlots], uint32_t head_split) {
    return &barriers[warpgroup][head_split % Traits::kDqSlots];
  }
  /// The piece's slot, once what was there before has left.
  __device__ __forceinline__ void await_slot(uint32_t head_split) {
    ptx::mbarrier_wait(piece_barrier(smem.dq_empty, head_split), head_split / Traits::kDqSlots % 2 ^ 1);
  }
  /// Adds kCount pieces of a step's sums, the first being the `first`th, straight from registers. So a thread never
  /// waits for a slot.
  template <int kCount>
  __device__ __forceinline__ void add_to_accum_tile(const float (&dq)[kCount * 16], uint32_t step, uint32_t first) {
    const uint32_t self = this->fresh_thread() % 128;
    const int64_t accum_tile = smem.dq_target[step % Traits::kDqTargets].accum_tile;
    float* sums = this->params.dq_sums + accum_tile * Traits::kAccumTileFloats + self / 32 * (Layout::kPieceFloats / 4);
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      const uint32_t head_split = Layout::column_piece(warpgroup, first + p);
      float4* to = reinterpret_cast<float4*>(sums + head_split * Layout::kPieceFloats) + self % 32;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (p * 4 + i) * 4;
        ptx::reduce_add_f32x4(to + i * 32, {dq[at], dq[at + 1], dq[at + 2], dq[at + 3]});
      }
    }
  }
  /// Stores sums of dq, or hands them to the writer warp.
  template <int kCount>
  __device__ __forceinline__ void hand_over(const float (&dq)[kCount * 16], uint32_t step, uint32_t first) {
    if constexpr (Traits::kDqFromRegisters) return add_to_accum_tile<kCount>(dq, step, first);
    const uint32_t self = this->fresh_thread() % 128;
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      const uint32_t head_split = step * Layout::kPieces + first + p;
      float4* to = reinterpret_cast<float4*>(smem.dq[warpgroup][head_split % Traits::kDqSlots] +
                                             self / 32 * (Layout::kPieceFloats / 4)) +
                   self % 32;
      await_slot(head_split);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (p * 4 + i) * 4;
        to[i * 32] = {dq[at], dq[at + 1], dq[at + 2], dq[at + 3]};
      }
      ptx::fence_proxy_async();
      arrive(piece_barrier(smem.dq_full, head_split));
    }
  }

  __device__ __forceinline__ void pass_piece(uint32_t head_split) {
    if constexpr (Traits::kDqFromRegisters) return;
    await_slot(head_split);
    arrive(piece_barrier(smem.dq_full, head_split));
  }
  /// Starts dP of the step at hand.
  __device__ __forceinline__ void issue_dp(typename Base::Scores& dp) {
    this->await_dout();
    this->template issue_product<4>(dp, smem.v + this->nothing(), smem.dout[here.stage()], smem.stats[here.stage()]);
  }
  /// Stops the writer.
  __device__ __forceinline__ void stop() { pass_piece(here.step * Layout::kPieces); }
};

}  // namespace tangram::sm90::backward
