// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Consumer warpgroups of two kernels that share the work.
#pragma once

#include "attn/sm90/backward/large_consumer.cuh"

namespace tangram::sm90::backward {

/// dV += P dO.
template <typename Traits>
struct DvConsumer : LargeConsumer<Traits> {
  using Base = LargeConsumer<Traits>;
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
  __device__ __forceinline__ void run() { this->run_work_tiles(*this); }
};

/// dK += dS Q, and dQ = dS^T K of the same step, in pieces of 32 columns (DqLayout).
template <typename Traits>
struct DkConsumer : PieceConsumer<Traits> {
  using Base = PieceConsumer<Traits>;
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

  /// S dP | exponentials | dS | dK dQ | hand dQ over | S' dP' | ... What waits for dS of the other warpgroup has dK
  /// before it. Once a piece of dQ is under way, the others follow and wait only for this warpgroup's matmuls and its
  /// writer. Other CTAs may be waiting for them (SplitWriter), and S', for one, waits for the other warpgroup. The loop
  /// is cut where nothing is in flight.
  __device__ __forceinline__ void run_steps(int32_t num_steps) {
    Scores s, dp;
    this->issue_scores(s);
    this->issue_dp(dp);
    for (;;) {
      ptx::wgmma_wait<1>();
      ptx::pin_registers(s);
      Packed packed;
      this->make_p(s, packed);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dp);
      arrive(&smem.lone.dout_empty);
      this->score_gradients(dp, s);
      pack_operand<Element>(packed, dp);
      const uint32_t stage = here.stage(), phase = here.step % 2;
      ptx::mbarrier_wait(&smem.ds_empty[0], phase ^ 1);
      this->store_ds(packed, smem.ds[0]);
      ptx::fence_proxy_async();
      arrive(&smem.ds_full[0]);
      this->issue_gradient(dk, packed, smem.q[stage]);
      ptx::mbarrier_wait(&smem.ds_full[0], phase);
      float lead[Layout::kLead / 2], rest[Layout::kRest / 2];
      this->template issue_dq_part<Layout::kLead>(lead, 0, this->lead_bytes());
      this->template issue_dq_part<Layout::kRest>(rest, 0, this->rest_bytes());
      ptx::wgmma_wait<2>();
      arrive(&smem.step_empty[stage]);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(lead);
      this->template hand_over<Layout::kLead / 32>(lead, here.step, 0);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(rest);
      arrive(&smem.ds_empty[0]);
      if (num_steps == 1) arrive(&smem.kv_empty);
      this->template hand_over<Layout::kRest / 32>(rest, here.step, Layout::kLead / 32);
      here.advance();
      if (--num_steps == 0) break;
      this->issue_scores(s);
      this->issue_dp(dp);
    }
    ptx::pin_registers(dk);
  }

  /// Keeps all phases in step, and hands over nothing.
  __device__ __forceinline__ void skip_step() {
    const uint32_t phase = here.step % 2;
    ptx::mbarrier_wait(&smem.ds_empty[0], phase ^ 1);
    arrive(&smem.ds_full[0]);
    ptx::mbarrier_wait(&smem.ds_full[0], phase);
    arrive(&smem.ds_empty[0]);
    arrive(&smem.lone.dout_empty);
    arrive(&smem.step_empty[here.stage()]);
    for (uint32_t p = 0; p < Layout::kPieces; ++p) this->pass_piece(here.step * Layout::kPieces + p);
    here.advance();
  }
  __device__ __forceinline__ void run() { this->run_work_tiles(*this); }
};

}  // namespace tangram::sm90::backward
