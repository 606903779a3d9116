// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup: 64 of a step's 128 gathered keys against the 128 packed rows of a work tile. Scores are
// transposed (keys by rows), so that P and dS are the register operands of dV = P dO and dK = dS Q of the step. These
// are added to float32 sums in global memory, each warp to its own group of 16 keys. Only dS passes through shared
// memory, for dQ = dS^T K of this warpgroup's 64 rows, which stays in registers to the end of the work tile.
#pragma once

#include "attn/sm90/query_backward/group_consumer.cuh"

namespace tangram::sm90::query_backward {

/// Keys: what knows how keys are named, as GroupConsumer.
template <typename Traits, typename Keys = GroupConsumer<Traits>>
struct Consumer : Keys {
  using Base = Keys;
  using typename Base::Half;
  using typename Base::Packed;
  using typename Base::Scores;
  using typename Base::Turn;
  using typename Base::Visible;
  using Element = typename Traits::Element;
  using Base::add_sums;
  using Base::advance;
  using Base::arrive;
  using Base::await_ds;
  using Base::await_step;
  using Base::dq;
  using Base::exponentiate;
  using Base::find_visible;
  using Base::fresh_thread;
  using Base::issue_dq;
  using Base::issue_gradient;
  using Base::issue_scores;
  using Base::params;
  using Base::score_gradients;
  using Base::smem;
  using Base::stage;
  using Base::step;
  using Base::store_ds;
  using Base::uniform;
  using Base::warpgroup;
  using Base::work_tile_phase;
  using Base::write_dq;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kPanels = Traits::kPanels;

  __device__ Consumer(const typename Traits::Params& params_in, typename Traits::SmemType& smem_in)
      : Base(params_in, smem_in) {}

  /// All steps of a work tile that sees keys:
  ///   S | exponentials | dV | dP, add dV | dS | dK | S', add dK | dQ, exponentials' | dV' | ...
  /// dV and dK are made by panels of columns: dq, P or dS, S or dP and one more panel fill the registers. Nothing is in
  /// flight where the loop is cut. From dK to S' a warpgroup has its turn: while it keeps the tensor cores busy, the
  /// other has time for exponentials.
  __device__ __forceinline__ void run_steps() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dq[i] = 0.0f;
    ptx::pin_registers(dq);
    ptx::mbarrier_wait(&smem.q_full, work_tile_phase());
    Packed p;
    {
      Scores s;
      issue_scores(s);
      Visible visible;
      find_visible(visible);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      exponentiate(p, s, visible);
    }
    ptx::mbarrier_wait(&smem.dout_full, work_tile_phase());
    Half high;  // the last panel of dk
    for (;;) {
      {
        Half dv[kPanels];
        issue_gradient(dv[0], p, smem.dout, 0);
        if constexpr (kPanels == 2) {
          issue_gradient(dv[1], p, smem.dout, 1);
          ptx::wgmma_wait<1>();
          ptx::pin_registers(dv[0]);
          add_sums(params.dv_sums, dv[0], step, 0);
        }
        Scores dp;
        ptx::mbarrier_wait(&smem.v_full, step % 2);
        this->template issue_product<true>(dp, smem.v, smem.dout);
        ptx::wgmma_wait<1>();
        ptx::pin_registers(dv[kPanels - 1]);
        add_sums(params.dv_sums, dv[kPanels - 1], step, kPanels - 1);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(dp);
        arrive(&smem.v_empty);
        score_gradients(p, dp);
      }
      store_ds(p);
      Turn::take(warpgroup);
      if constexpr (kPanels == 1) {
        issue_gradient(high, p, smem.q, 0);
        ptx::fence_proxy_async();
        arrive(&smem.ds_full[step % Traits::kDsBuffers]);
      } else {
        Half low;
        issue_gradient(low, p, smem.q, 0);
        ptx::fence_proxy_async();
        arrive(&smem.ds_full[step % Traits::kDsBuffers]);
        issue_gradient(high, p, smem.q, 1);
        ptx::wgmma_wait<1>();
        ptx::pin_registers(low);
        add_sums(params.dk_sums, low, step, 0);
      }
      ptx::wgmma_wait<0>();
      ptx::pin_registers(high);
      if (uniform(smem.step[stage()].kind & kStepLast)) break;
      advance();
      await_step();
      Scores s;
      issue_scores(s);
      Turn::pass_to(warpgroup ^ 1);
      add_sums(params.dk_sums, high, step - 1, kPanels - 1);
      Visible visible;
      find_visible(visible);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      await_ds(step - 1);
      issue_dq(step - 1);
      exponentiate(p, s, visible);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dq);
      arrive(&smem.k_empty[(step - 1) % Traits::kStagesK]);
    }
    Turn::pass_to(warpgroup ^ 1);
    arrive(&smem.work_tile_empty);
    await_ds(step);
    issue_dq(step);
    add_sums(params.dk_sums, high, step, kPanels - 1);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(dq);
  }

  __device__ __forceinline__ void skip_work_tile() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dq[i] = 0.0f;
    ptx::mbarrier_wait(&smem.v_full, step % 2);  // keeps phases in step
    arrive(&smem.v_empty);
    arrive(&smem.ds_full[step % Traits::kDsBuffers]);
    await_ds(step);
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) Turn::pass_to(0);
    for (;;) {
      await_step();
      const auto& message = smem.step[stage()];
      const int32_t kind = uniform(message.kind), count = uniform(message.count);
      if (kind & kStepStop) break;
      if (count == 0) {
        skip_work_tile();
      } else {
        run_steps();
      }
      write_dq();
      // Else the compiler takes the warp for split from here on, and keeps no descriptor in uniform registers.
      __syncwarp();
      advance();
    }
    if (warpgroup == 0) Turn::take(0);
  }
};

}  // namespace tangram::sm90::query_backward
