// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup that makes all gradients of heads whose dk and dv leave no registers for S beside dP.
#pragma once

#include "attn/sm90/backward/large_consumer.cuh"

namespace tangram::sm90::backward {

/// P is rounded and packed for dV before dP is made: dS = P (dP - delta) with the rounded P.
/// Each dQ comes a step late, as in Consumer.
template <typename Traits>
struct PackedConsumer : PieceConsumer<Traits> {
  using Base = PieceConsumer<Traits>;
  using typename Base::Packed;
  using typename Base::Scores;
  using Element = typename Traits::Element;
  using Base::arrive;
  using Base::dk;
  using Base::dv;
  using Base::here;
  using Base::smem;
  using Layout = typename Traits::Dq;
  using Lead = float[Layout::kLead / 2];
  using Rest = float[Layout::kRest / 2];

  __device__ PackedConsumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  static __device__ __forceinline__ uint32_t buffer(uint32_t step) { return step % Traits::kDsBuffers; }
  static __device__ __forceinline__ uint32_t buffer_phase(uint32_t step) { return step / Traits::kDsBuffers % 2; }

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int i = 0; i < Traits::kDimQk / 2; ++i) dk[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < Traits::kDimV / 2; ++i) dv[i] = 0.0f;
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
  }

  __device__ __forceinline__ void await_ds(uint32_t step) {
    ptx::mbarrier_wait(&smem.ds_full[buffer(step)], buffer_phase(step));
  }
  /// Start dQ of a step, all of whose dS must be there.
  __device__ __forceinline__ void issue_lead(Lead& lead, uint32_t step) {
    this->template issue_dq_part<Layout::kLead>(lead, buffer(step), this->lead_bytes());
  }
  __device__ __forceinline__ void issue_rest(Rest& rest, uint32_t step) {
    this->template issue_dq_part<Layout::kRest>(rest, buffer(step), this->rest_bytes());
  }
  __device__ __forceinline__ void hand_over_lead(const Lead& lead, uint32_t step) {
    this->template hand_over<Layout::kLead / 32>(lead, step, 0);
  }
  /// dq is complete: dS of the step is no longer needed.
  __device__ __forceinline__ void hand_over_rest(const Rest& rest, uint32_t step) {
    arrive(&smem.ds_empty[buffer(step)]);
    this->template hand_over<Layout::kRest / 32>(rest, step, Layout::kLead / 32);
  }
  /// dQ of a step behind the last of a work tile.
  __device__ __forceinline__ void drain(uint32_t step) {
    ptx::make_opaque(step);  // else what follows from it takes registers from the loop before
    await_ds(step);
    Lead lead;
    issue_lead(lead, step);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(lead);
    hand_over_lead(lead, step);
    Rest rest;
    issue_rest(rest, step);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(rest);
    hand_over_rest(rest, step);
  }

  /// packed, which is P or, with softcap, P times the derivative of the cap, becomes dS; dp is dP - delta.
  __device__ __forceinline__ void score_gradients(Packed& packed, const Scores& dp) {
#pragma unroll
    for (int g = 0; g < Base::kScores / 8; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 p = ptx::unpack_pair<Element>(packed[g][i]);
        packed[g][i] = pack_pair<Element>(dp[8 * g + 2 * i] * p.x, dp[8 * g + 2 * i + 1] * p.y);
      }
    }
  }

  /// S | exponentials | dP dV | dS | dK dQ of the step before | hand dQ over, S' | ...
  /// dK, dV and one of S, dP and dQ fill the registers: dS takes the place of P, hence waits for dV, and the second
  /// part of dQ that of dS. With softcap, whose dS needs more than P, dV comes before dP. From dK to S' a warpgroup has
  /// its turn. Once a piece of dQ is under way the others follow, and wait only for the writer (see DkConsumer): what
  /// S' waits for comes before.
  __device__ __forceinline__ void run_steps(int32_t num_steps) {
    Scores s;
    bool first = true;  // no step before it whose dQ is to come
    this->issue_scores(s);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
    for (;;) {
      const uint32_t stage = here.stage(), step = here.step;
      Packed p;
      this->make_p(s, p);
      this->await_dout();
      if constexpr (Traits::kSoftcap) {
        this->issue_gradient(dv, p, smem.dout[stage]);
        ptx::wgmma_wait<0>();
        pack_operand<Element>(p, s);
      }
      Scores& dp = s;
      this->issue_dp(dp);
      if constexpr (!Traits::kSoftcap) this->issue_gradient(dv, p, smem.dout[stage]);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dp);
      Packed& ds = p;
      score_gradients(ds, dp);
      ptx::mbarrier_wait(&smem.ds_empty[buffer(step)], buffer_phase(step) ^ 1);
      this->store_ds(ds, smem.ds[buffer(step)]);
      this->ping_pong_wait();
      this->issue_gradient(dk, ds, smem.q[stage]);
      ptx::fence_proxy_async();
      arrive(&smem.ds_full[buffer(step)]);
      if (--num_steps == 0) break;
      if (!first) await_ds(step - 1);
      // In the first step this multiplies an old buffer, and the result is not used.
      Lead lead;
      Rest rest;
      issue_lead(lead, step - 1);
      ptx::wgmma_wait<1>();  // dK: frees dS before the rest needs registers
      arrive(&smem.step_empty[stage]);
      here.advance();
      this->await_queries();
      issue_rest(rest, step - 1);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(lead);
      if (!first) hand_over_lead(lead, step - 1);
      this->multiply_scores(s);
      this->ping_pong_arrive();
      ptx::wgmma_wait<1>();
      ptx::pin_registers(rest);
      if (!first) hand_over_rest(rest, step - 1);
      first = false;
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
    }
    this->ping_pong_arrive();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    arrive(&smem.step_empty[here.stage()]);
    if (!first) drain(here.step - 1);
    drain(here.step);
    arrive(&smem.kv_empty);
    here.advance();
  }

  /// Keeps all phases in step, and hands over nothing.
  __device__ __forceinline__ void skip_step() {
    const uint32_t step = here.step;
    ptx::mbarrier_wait(&smem.ds_empty[buffer(step)], buffer_phase(step) ^ 1);
    arrive(&smem.ds_full[buffer(step)]);
    await_ds(step);
    arrive(&smem.ds_empty[buffer(step)]);
    arrive(&smem.step_empty[here.stage()]);
    for (uint32_t p = 0; p < Layout::kPieces; ++p) this->pass_piece(step * Layout::kPieces + p);
    here.advance();
  }
  __device__ __forceinline__ void run() {
    if (this->warpgroup == 1) this->ping_pong_arrive();
    this->run_work_tiles(*this);
    if (this->warpgroup == 0) this->ping_pong_wait();
  }
};

}  // namespace tangram::sm90::backward
