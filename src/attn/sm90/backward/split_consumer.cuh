// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Consumer warpgroups of the two kernels of SplitTraits, each for 64 of an item's keys, as Consumer.
#pragma once

#include "attn/sm90/backward/consumer_base.cuh"
#include "attn/sm90/backward/split_traits.cuh"

namespace tangram::sm90::backward {

/// What both have in common: the walk over items.
template <typename Traits>
struct SplitConsumer : ConsumerBase<Traits> {
  using Base = ConsumerBase<Traits>;
  using typename Base::Packed;
  using typename Base::Scores;
  using Element = typename Traits::Element;
  using Base::arrive;
  using Base::here;
  using Base::params;
  using Base::smem;
  using Base::warpgroup;

  __device__ SplitConsumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  /// 0, which the compiler takes for something that changes with the step: it would otherwise keep descriptors that do
  /// not depend on a stage in registers that the accumulators need.
  __device__ __forceinline__ uint32_t nothing() const { return Traits::kStages == 1 ? here.step >> 31 << 4 : 0; }

  /// Starts S of the step at hand.
  __device__ __forceinline__ void issue_scores(Scores& s) {
    const uint32_t stage = here.stage();
    ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
    if (params.covered_queries && smem.step[stage].kind & kStepZeroRows) this->zero_step(stage);
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

  /// Waits for K, and for V where it is needed, of the item at hand.
  __device__ __forceinline__ void await_keys_of(const Item& item) {
    const uint32_t kv_phase = item.flags & kItemOddPhase ? 1 : 0;
    ptx::mbarrier_wait(&smem.k_full, kv_phase);
    if constexpr (Traits::kMakesDk) ptx::mbarrier_wait(&smem.v_full, kv_phase);
    if (item.flags & kItemZeroRows) {
      this->zero_rows(smem.k, kBlockN, item.covered);
      if constexpr (Traits::kMakesDk) this->template zero_rows<Traits::kPanelsV>(smem.v, kBlockN, item.covered);
      this->zero_done();
    }
  }

  /// `self`: this, as what it is.
  template <typename Self>
  __device__ __forceinline__ void run_items(Self& self) {
    for (;;) {
      const uint32_t stage = here.stage();
      ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
      if (smem.step[stage].kind & kStepStop) break;
      const Item& item = smem.item[smem.step[stage].item_slot];
      self.clear_sums();
      if (item.num_steps == 0) {
        self.skip_step();
      } else {
        await_keys_of(item);
        self.run_steps(item.num_steps);
      }
      write_gradients<Traits>(params, item, this->fresh_thread(), this->dk, this->dv);
      __syncwarp();  // see Consumer::run
    }
    self.stop();
  }
};

/// dV += P dO.
template <typename Traits>
struct DvConsumer : SplitConsumer<Traits> {
  using Base = SplitConsumer<Traits>;
  using Base::arrive;
  using Base::dv;
  using Base::here;
  using Base::smem;
  using typename Base::Packed;
  using typename Base::Scores;

  __device__ DvConsumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int i = 0; i < Traits::kDimV / 2; ++i) dv[i] = 0.0f;
    ptx::pin_registers(dv);
  }

  /// S of a step is made beside dV of the one before; its exponentials beside the matmuls of the other warpgroup.
  __device__ __forceinline__ void run_steps(int32_t num_steps) {
    Scores s;
    this->issue_scores(s);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
    for (;;) {
      const uint32_t stage = here.stage();
      Packed p;
      this->make_p(s, p);
      this->await_dout();
      this->issue_gradient(dv, p, smem.dout[stage]);
      if (--num_steps == 0) break;
      here.advance();
      this->issue_scores(s);
      ptx::wgmma_wait<1>();
      arrive(&smem.step_empty[stage]);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(dv);
    arrive(&smem.step_empty[here.stage()]);
    arrive(&smem.kv_empty);
    here.advance();
  }
  __device__ __forceinline__ void skip_step() {
    arrive(&smem.step_empty[here.stage()]);
    here.advance();
  }
  __device__ __forceinline__ void stop() {}
  __device__ __forceinline__ void run() { this->run_items(*this); }
};

/// dK += dS Q, and dQ = dS^T K of the same step, in pieces of 32 columns (DqLayout).
template <typename Traits>
struct DkConsumer : SplitConsumer<Traits> {
  using Base = SplitConsumer<Traits>;
  using typename Base::Packed;
  using typename Base::Scores;
  using Element = typename Traits::Element;
  using Base::arrive;
  using Base::dk;
  using Base::here;
  using Base::smem;
  using Base::warpgroup;
  using Layout = typename Traits::Dq;

  __device__ DkConsumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int i = 0; i < Traits::kDimQk / 2; ++i) dk[i] = 0.0f;
    ptx::pin_registers(dk);
  }

  /// Starts dq of kColumns columns that begin `bytes` into the panels of K.
  template <int kColumns>
  __device__ __forceinline__ void issue_dq_part(float (&dq)[kColumns / 2], uint32_t bytes) {
    this->template issue_dq_columns<kColumns>(dq, ptx::smem_address(smem.ds) + this->nothing(),
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

  __device__ __forceinline__ uint64_t* piece_barrier(uint64_t (&barriers)[2][Traits::kDqSlots], uint32_t piece) {
    return &barriers[warpgroup][piece % Traits::kDqSlots];
  }
  /// The piece's slot, once what was there before has left.
  __device__ __forceinline__ void await_slot(uint32_t piece) {
    ptx::mbarrier_wait(piece_barrier(smem.dq_empty, piece), piece / Traits::kDqSlots % 2 ^ 1);
  }
  /// Hands over kCount pieces of sums, the first being the `first`th of the step at hand.
  template <int kCount>
  __device__ __forceinline__ void hand_over(const float (&dq)[kCount * 16], uint32_t first) {
    const uint32_t self = this->fresh_thread() % 128;
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      const uint32_t piece = here.step * Layout::kPieces + first + p;
      float4* to = reinterpret_cast<float4*>(smem.dq[warpgroup][piece % Traits::kDqSlots] +
                                             self / 32 * (Layout::kPieceFloats / 4)) +
                   self % 32;
      await_slot(piece);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (p * 4 + i) * 4;
        to[i * 32] = {dq[at], dq[at + 1], dq[at + 2], dq[at + 3]};
      }
      ptx::fence_proxy_async();
      arrive(piece_barrier(smem.dq_full, piece));
    }
  }

  /// S dP | exponentials | dS | dK dQ | hand dQ over | S' dP' | ...
  /// What waits for dS of the other warpgroup has dK before it. Once a piece of dQ is under way, the others follow
  /// without a wait for anything but this warpgroup's matmuls and its writer: other CTAs may be waiting for them
  /// (SplitDqWriter), and S', for one, waits for the other warpgroup. The loop is cut where nothing is in flight.
  __device__ __forceinline__ void run_steps(int32_t num_steps) {
    Scores s, dp;
    this->issue_scores(s);
    issue_dp(dp);
    for (;;) {
      ptx::wgmma_wait<1>();
      ptx::pin_registers(s);
      Packed packed;
      this->make_p(s, packed);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dp);
      this->score_gradients(dp, s);
      pack_operand<Element>(packed, dp);
      const uint32_t stage = here.stage(), phase = here.step % 2;
      ptx::mbarrier_wait(&smem.ds_empty, phase ^ 1);
      this->store_ds(packed, smem.ds);
      ptx::fence_proxy_async();
      arrive(&smem.ds_full);
      this->issue_gradient(dk, packed, smem.q[stage]);
      ptx::mbarrier_wait(&smem.ds_full, phase);
      float lead[Layout::kLead / 2], rest[Layout::kRest / 2];
      issue_dq_part<Layout::kLead>(lead, lead_bytes());
      issue_dq_part<Layout::kRest>(rest, rest_bytes());
      ptx::wgmma_wait<2>();
      arrive(&smem.step_empty[stage]);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(lead);
      hand_over<Layout::kLead / 32>(lead, 0);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(rest);
      arrive(&smem.ds_empty);
      if (num_steps == 1) arrive(&smem.kv_empty);
      hand_over<Layout::kRest / 32>(rest, Layout::kLead / 32);
      here.advance();
      if (--num_steps == 0) break;
      this->issue_scores(s);
      issue_dp(dp);
    }
    ptx::pin_registers(dk);
  }
  __device__ __forceinline__ void issue_dp(Scores& dp) {
    this->await_dout();
    this->template issue_product<4>(dp, smem.v + this->nothing(), smem.dout[here.stage()], smem.stats[here.stage()]);
  }

  /// Keeps all phases in step, and hands over nothing.
  __device__ __forceinline__ void skip_step() {
    const uint32_t phase = here.step % 2;
    ptx::mbarrier_wait(&smem.ds_empty, phase ^ 1);
    arrive(&smem.ds_full);
    ptx::mbarrier_wait(&smem.ds_full, phase);
    arrive(&smem.ds_empty);
    arrive(&smem.step_empty[here.stage()]);
    for (uint32_t p = 0; p < Layout::kPieces; ++p) pass_piece(here.step * Layout::kPieces + p);
    here.advance();
  }
  __device__ __forceinline__ void pass_piece(uint32_t piece) {
    await_slot(piece);
    arrive(piece_barrier(smem.dq_full, piece));
  }
  /// Nothing: stops the writer.
  __device__ __forceinline__ void stop() { pass_piece(here.step * Layout::kPieces); }
  __device__ __forceinline__ void run() { this->run_items(*this); }
};

}  // namespace tangram::sm90::backward
