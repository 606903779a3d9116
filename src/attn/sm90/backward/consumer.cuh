// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The pipeline of a consumer warpgroup of the backward kernel: 64 keys against all query tiles of a work tile, one step
// at a time. Each warpgroup computes one half of the columns of dQ, one step late.
#pragma once

#include "attn/sm90/backward/consumer_base.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
struct Consumer : ConsumerBase<Traits> {
  using Base = ConsumerBase<Traits>;
  using typename Base::Packed;
  using typename Base::Scores;
  using Element = typename Traits::Element;
  using Base::arrive;
  using Base::dk;
  using Base::dv;
  using Base::fresh_thread;
  using Base::here;
  using Base::params;
  using Base::ping_pong_arrive;
  using Base::ping_pong_wait;
  using Base::smem;
  using Base::warpgroup;
  using Base::zero_done;
  static constexpr int kDimQk = Traits::kDimQk;
  static constexpr int kDimV = Traits::kDimV;
  using Dq = typename Traits::Dq;
  static constexpr int kDqCols = Dq::kGroups0 * 8;  // columns of dq of one warpgroup, or more than its part
  static constexpr int kDqSums = kDqCols / 2;       // accumulators of 64 queries by kDqCols
  using DqSums = float[kDqSums];

  __device__ Consumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  __device__ __forceinline__ void wait_ds(const Cursor<Traits>& at) {
    ptx::mbarrier_wait(&smem.ds_full[at.buffer()], at.buffer_phase());
  }
  /// Starts dq = dS^T K for the 64 queries and this warpgroup's columns.
  __device__ __forceinline__ void issue_dq(DqSums& dq, uint32_t buffer) {
    const uint32_t k_columns = kDqCols == 64 ? warpgroup * Traits::kPanelBytesK : warpgroup * kDqCols * 2;
    this->template issue_dq_columns<kDqCols>(dq, ptx::smem_address(smem.ds[buffer]),
                                             ptx::smem_address(smem.k) + k_columns);
  }

  /// Adds dq of a step to its accumulator tile, in two parts: the first empties the registers, the second makes sure
  /// that it gets there. A warp's part of an accumulator tile is contiguous: [column group of 8][lane].
  __device__ __forceinline__ void stage_dq(const DqSums& dq, const Cursor<Traits>& at) {
    const uint32_t self = fresh_thread();
    const uint32_t part = Dq::kEven ? self / 32 * Traits::kWarpAccumTileFloats
                                    : Dq::side_begin(warpgroup) + self / 32 % 4 * Dq::num_groups(warpgroup) * 128;
    float4* staged = reinterpret_cast<float4*>(smem.dq + part) + self % 32;
    wait_staging(at);
#pragma unroll
    for (int i = 0; i < kDqSums / 4; ++i) {
      if (!Dq::kEven && i >= Dq::num_groups(warpgroup)) continue;
      staged[i * 32] = {dq[i * 4], dq[i * 4 + 1], dq[i * 4 + 2], dq[i * 4 + 3]};
    }
  }
  __device__ __forceinline__ void wait_staging(const Cursor<Traits>& at) {
    ptx::mbarrier_wait(&smem.dq_empty[warpgroup], at.step % 2 ^ 1);
  }
  /// After what was staged has been made visible with fence_proxy_async().
  __device__ __forceinline__ void send_dq() { arrive(&smem.dq_full[warpgroup]); }

  /// Starts S and dP of the current step and waits for S. Between the two, `drain` takes out what was issued before;
  /// `meanwhile` runs beside them. What is visible is found before `drain`, which waits for the tensor cores in any
  /// case; with softcap later, for lack of registers.
  template <typename Drain, typename Meanwhile>
  __device__ __forceinline__ void start_step(Scores& s, Scores& dp, uint32_t& visible, const Drain& drain,
                                             const Meanwhile& meanwhile) {
    const uint32_t stage = here.stage();
    ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
    if (params.covered_queries && smem.step[stage].kind & kStepZeroRows) this->zero_step(stage);
    this->template issue_product<Traits::kSoftcap ? Base::kNoTerms : 0>(s, smem.k, smem.q[stage], smem.stats[stage]);
    const auto see = [&] {
      visible = smem.step[stage].kind & kStepMasked ? this->visible_scores(smem.step[stage]) : 0;
    };
    if constexpr (!Traits::kSoftcap) see();
    drain();
    ptx::mbarrier_wait(&smem.dout_full[stage], here.stage_phase());
    this->template issue_product<4>(dp, smem.v, smem.dout[stage], smem.stats[stage]);
    meanwhile();
    if constexpr (Traits::kSoftcap) see();
    ptx::wgmma_wait<1>();
    ptx::pin_registers(s);
  }

  /// Finishes a step. Before: S is there and dP in flight; after: dV and dK are in flight, and dS is in shared memory.
  __device__ __forceinline__ void finish_step(Scores& s, Scores& dp, uint32_t visible, bool first) {
    const uint32_t stage = here.stage();
    const bool masked = smem.step[stage].kind & kStepMasked;
    Packed packed_p, packed_ds;
    if constexpr (Traits::kSoftcap) {
      this->exponentiate_capped(s, packed_p, masked, visible);
    } else {
      this->exponentiate(s, masked, visible);
      pack_operand<Element>(packed_p, s);
    }
    this->issue_gradient(dv, packed_p, smem.dout[stage]);
    ptx::wgmma_wait<1>();
    ptx::pin_registers(dp);
    this->score_gradients(dp, s);
    pack_operand<Element>(packed_ds, dp);
    if (!first) wait_ds(here.previous());  // see Smem::ds
    this->store_ds(packed_ds, smem.ds[here.buffer()]);
    ping_pong_wait();
    this->issue_gradient(dk, packed_ds, smem.q[stage]);
    ptx::fence_proxy_async();
    arrive(&smem.ds_full[here.buffer()]);
  }

  /// All steps of a work tile. The matmuls are queued so that every wait leaves some in flight:
  ///   S dP | exponentials | dV | dS | dK | dQ S' | add dQ | dP' | ...
  /// Each dQ comes a step late, so that the warpgroups need not be in step, and leaves its registers before dP needs
  /// them. The loop is cut where nothing but dP is in flight: registers of operands in flight around a loop's end would
  /// count twice.
  __device__ __forceinline__ void run_steps(int32_t num_steps, uint32_t kv_phase) {
    Scores s, dp;
    uint32_t visible;
    bool first = true;  // no step before it whose dQ is to come
#pragma unroll
    for (int i = 0; i < kDimQk / 2; ++i) dk[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0.0f;
    ptx::pin_registers(dk);  // zeros now, not in between matmuls
    ptx::pin_registers(dv);
    start_step(s, dp, visible, [&] { ptx::mbarrier_wait(&smem.v_full, kv_phase); }, [] {});
    for (;;) {
      finish_step(s, dp, visible, first);
      if (--num_steps == 0) break;
      // In the first step this multiplies an old buffer, and the result is not used.
      const Cursor<Traits> before = here.previous();
      DqSums dq;
      issue_dq(dq, before.buffer());
      ptx::wgmma_wait<1>();  // dV and dK: frees P and dS before S needs registers
      const uint32_t stage = here.stage();
      arrive(&smem.step_empty[stage]);
      here.advance();
      start_step(
          s, dp, visible,
          [&] {
            ping_pong_arrive();
            ptx::wgmma_wait<1>();
            ptx::pin_registers(dq);
            if (!first) stage_dq(dq, here.previous().previous());
          },
          [&] {
            if (!first) {
              ptx::fence_proxy_async();
              send_dq();
            }
            first = false;
          });
    }
    const uint32_t stage = here.stage();
    ping_pong_arrive();
    if (!first) {
      const Cursor<Traits> before = here.previous();
      DqSums dq;
      issue_dq(dq, before.buffer());
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dq);
      stage_dq(dq, before);
      ptx::fence_proxy_async();
      send_dq();
    }
    wait_ds(here);
    DqSums dq;
    issue_dq(dq, here.buffer());
    ptx::wgmma_wait<0>();
    ptx::pin_registers(dq);
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    arrive(&smem.step_empty[stage]);
    arrive(&smem.kv_empty);
    stage_dq(dq, here);
    ptx::fence_proxy_async();
    send_dq();
    here.advance();
  }

  /// A work tile that no query sees: nothing to load, gradients zero.
  __device__ __forceinline__ void skip_steps() {
#pragma unroll
    for (int i = 0; i < kDimQk / 2; ++i) dk[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0.0f;
    arrive(&smem.ds_full[here.buffer()]);  // keeps its phase in step with the cursor
    wait_ds(here);
    arrive(&smem.step_empty[here.stage()]);
    wait_staging(here);
    send_dq();
    here.advance();
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) ping_pong_arrive();
    for (;;) {
      const uint32_t stage = here.stage();
      ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
      if (smem.step[stage].kind & kStepStop) break;
      const int32_t slot = smem.step[stage].work_tile_slot;
      if (smem.work_tile[slot].num_steps == 0) {
        skip_steps();
      } else {
        const uint32_t kv_phase = smem.work_tile[slot].flags & kWorkTileOddPhase ? 1 : 0;
        ptx::mbarrier_wait(&smem.k_full, kv_phase);
        if (smem.work_tile[slot].flags & kWorkTileZeroRows) {
          ptx::mbarrier_wait(&smem.v_full, kv_phase);
          this->zero_rows(smem.k, kBlockN, smem.work_tile[slot].covered);
          this->template zero_rows<Traits::kPanelsV>(smem.v, kBlockN, smem.work_tile[slot].covered);
          zero_done();
        }
        run_steps(smem.work_tile[slot].num_steps, kv_phase);
      }
      write_gradients<Traits>(params, smem.work_tile[slot], fresh_thread(), dk, dv);
      // Else the compiler takes the warp for split from here on, and keeps no descriptor of the loop in uniform
      // registers.
      __syncwarp();
    }
    if (warpgroup == 0) ping_pong_wait();
    wait_staging(here);
    send_dq();  // nothing: stops the writer
  }
};

}  // namespace tangram::sm90::backward
