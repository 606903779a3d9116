// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the backward kernel that takes two steps at once. With head_dim 64 a step is so short that
// its barriers, latencies and wait for the other warpgroup's dS would cost as much as its matmuls.
#pragma once

#include "attn/sm90/backward/consumer_base.cuh"

namespace tangram::sm90::backward {

/// Any two consecutive steps a and b of a work tile are a pair. A work tile with an odd number of steps ends with half
/// a pair, whose b is a again with nothing visible. Each warpgroup computes dQ of one of them, all columns, a pair
/// late.
template <typename Traits>
struct PairConsumer : ConsumerBase<Traits> {
  using Base = ConsumerBase<Traits>;
  using typename Base::Packed;
  using typename Base::Scores;
  using Element = typename Traits::Element;
  using DqSums = float[Traits::kHeadDim / 2];
  using Base::arrive;
  using Base::dk;
  using Base::dv;
  using Base::fresh_thread;
  using Base::params;
  using Base::smem;
  using Base::warpgroup;
  static constexpr uint32_t kPairStages = Traits::kStages / 2;
  uint32_t pair = 0;  // in all work tiles; uniform in a warp, and known to be

  __device__ PairConsumer(const Params& params_in, Smem<Traits>& smem_in) : Base(params_in, smem_in) {}

  __device__ __forceinline__ uint32_t stage() const { return pair % kPairStages * 2; }  // of a; that of b follows
  __device__ __forceinline__ uint32_t stage_phase() const { return pair / kPairStages % 2; }
  static __device__ __forceinline__ uint32_t buffer(uint32_t pair) { return pair % Traits::kDsBuffers; }
  static __device__ __forceinline__ uint32_t buffer_phase(uint32_t pair) { return pair / Traits::kDsBuffers % 2; }
  __device__ __forceinline__ void advance() { pair = __shfl_sync(0xffffffff, pair + 1, 0); }
  __device__ __forceinline__ void await_ds(uint32_t of_pair) {
    ptx::mbarrier_wait(&smem.ds_full[buffer(of_pair)], buffer_phase(of_pair));
  }
  __device__ __forceinline__ void await_staging(uint32_t of_pair) {
    ptx::mbarrier_wait(&smem.dq_empty[warpgroup], of_pair % 2 ^ 1);
  }

  /// Waits for Q of the step in `stage`; returns its kind.
  __device__ __forceinline__ int32_t await_queries(uint32_t stage) {
    ptx::mbarrier_wait(&smem.q_full[stage], stage_phase());
    const int32_t kind = __shfl_sync(0xffffffff, smem.step[stage].kind, 0);
    if (params.covered_queries && kind & kStepZeroRows) {
      await_dout(stage);
      this->zero_rows(smem.q[stage], kBlockM, smem.step[stage].covered);
      this->zero_rows(smem.dout[stage], kBlockM, smem.step[stage].covered);
      this->zero_done();
    }
    return kind;
  }
  __device__ __forceinline__ void await_dout(uint32_t stage) {
    ptx::mbarrier_wait(&smem.dout_full[stage], stage_phase());
  }
  __device__ __forceinline__ void issue_s(Scores& s, uint32_t stage) {
    this->template issue_product<0>(s, smem.k, smem.q[stage], smem.stats[stage]);
  }
  __device__ __forceinline__ void issue_dp(Scores& dp, uint32_t stage) {
    this->template issue_product<4>(dp, smem.v, smem.dout[stage], smem.stats[stage]);
  }

  __device__ __forceinline__ uint32_t find_visible(uint32_t stage, int32_t kind) {
    return kind & kStepMasked ? this->visible_scores(smem.step[stage]) : 0;
  }
  /// s becomes P, packed as well.
  __device__ __forceinline__ void make_p(Scores& s, Packed& packed, int32_t kind, uint32_t visible) {
    this->exponentiate(s, kind & (kStepMasked | kStepAbsent), visible);
    pack_operand<Element>(packed, s);
  }

  /// Starts dq = dS^T K for the queries of this warpgroup's step of a pair.
  __device__ __forceinline__ void issue_pair_dq(DqSums& dq, uint32_t of_pair) {
    this->template issue_dq_columns<Traits::kHeadDim>(
        dq, ptx::smem_address(smem.ds[buffer(of_pair)]) + warpgroup * Traits::kBytesDs, ptx::smem_address(smem.k));
  }

  /// dq is complete: dS is no longer needed. In the order of an accumulator tile, of which a warp holds two parts, one
  /// of each half of the columns.
  __device__ __forceinline__ void stage_pair_dq(const DqSums& dq, uint32_t of_pair) {
    arrive(&smem.pairs.ds_empty[buffer(of_pair)]);
    constexpr int kHalfAccumTile = Traits::kAccumTileFloats / 2 / 4;  // in float4
    constexpr int kHalfGroups = Traits::kHeadDim / 16;
    const uint32_t self = fresh_thread();
    float4* staged = reinterpret_cast<float4*>(smem.dq + warpgroup * Traits::kAccumTileFloats +
                                               self / 32 % 4 * Traits::kWarpAccumTileFloats) +
                     self % 32;
    await_staging(of_pair);
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 8; ++i) {
      staged[i / kHalfGroups * kHalfAccumTile + i % kHalfGroups * 32] = {dq[i * 4], dq[i * 4 + 1], dq[i * 4 + 2],
                                                                         dq[i * 4 + 3]};
    }
  }
  __device__ __forceinline__ void send_dq() {
    ptx::fence_proxy_async();
    arrive(&smem.dq_full[warpgroup]);
  }

  /// All pairs of a work tile. Matmuls are queued so that every wait leaves some in flight:
  ///   S_a dP_a S_b | P_a | dV_a | dS_a | dP_b dK_a | P_b | dV_b | dS_b | dK_b dQ of the pair before, S_a' | stage dQ |
  ///   dP_a' | hand dQ over | ...
  /// From dK_b to dP_a' a warpgroup has its turn: these keep the tensor cores busy while the other exponentiates.
  /// The loop is cut where nothing but dP_a is in flight (as in Consumer).
  __device__ __forceinline__ void run_pairs(int32_t num_pairs, uint32_t kv_phase) {
    Scores s_a, dp_a;
    int32_t kind_a = await_queries(stage());
    bool first = true;  // no pair before it whose dQ is to come
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 2; ++i) dk[i] = dv[i] = 0.0f;
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    issue_s(s_a, stage());
    ptx::mbarrier_wait(&smem.v_full, kv_phase);
    await_dout(stage());
    issue_dp(dp_a, stage());
    uint32_t visible_a = find_visible(stage(), kind_a);
    ptx::wgmma_wait<1>();
    ptx::pin_registers(s_a);
    for (;;) {
      const uint32_t at = stage();
      const int32_t kind_b = await_queries(at + 1);
      const uint32_t at_b = __shfl_sync(0xffffffff, kind_b & kStepAbsent ? at : at + 1, 0);
      Scores s_b;
      issue_s(s_b, at_b);  // dP_a, S_b
      Packed p_a, ds_a;
      make_p(s_a, p_a, kind_a, visible_a);
      this->issue_gradient(dv, p_a, smem.dout[at]);  // dP_a, S_b, dV_a
      ptx::wgmma_wait<2>();
      ptx::pin_registers(dp_a);
      this->score_gradients(dp_a, s_a);
      pack_operand<Element>(ds_a, dp_a);
      Scores dp_b;
      await_dout(at + 1);
      issue_dp(dp_b, at_b);  // S_b, dV_a, dP_b
      ptx::mbarrier_wait(&smem.pairs.ds_empty[buffer(pair)], buffer_phase(pair) ^ 1);
      this->store_ds(ds_a, smem.ds[buffer(pair)]);
      this->issue_gradient(dk, ds_a, smem.q[at]);  // S_b, dV_a, dP_b, dK_a
      const uint32_t visible_b = find_visible(at_b, kind_b);
      ptx::wgmma_wait<3>();
      ptx::pin_registers(s_b);
      Packed p_b, ds_b;
      make_p(s_b, p_b, kind_b, visible_b);
      this->issue_gradient(dv, p_b, smem.dout[at_b]);  // dV_a, dP_b, dK_a, dV_b
      ptx::wgmma_wait<2>();
      ptx::pin_registers(dp_b);
      this->score_gradients(dp_b, s_b);
      pack_operand<Element>(ds_b, dp_b);
      this->store_ds(ds_b, smem.ds[buffer(pair)] + Traits::kBytesDs);
      this->ping_pong_wait();
      this->issue_gradient(dk, ds_b, smem.q[at_b]);  // dK_a, dV_b, dK_b
      ptx::fence_proxy_async();
      arrive(&smem.ds_full[buffer(pair)]);
      if (--num_pairs == 0) break;
      if (!first) await_ds(pair - 1);
      // In the first pair this multiplies an old buffer, and the result is not used.
      DqSums dq;
      issue_pair_dq(dq, pair - 1);  // dK_a, dV_b, dK_b, dQ
      ptx::wgmma_wait<1>();
      arrive(&smem.step_empty[at]);
      arrive(&smem.step_empty[at + 1]);
      advance();
      kind_a = await_queries(stage());
      issue_s(s_a, stage());  // dQ, S_a
      ptx::wgmma_wait<1>();
      ptx::pin_registers(dq);
      if (!first) stage_pair_dq(dq, pair - 2);
      await_dout(stage());
      issue_dp(dp_a, stage());  // S_a, dP_a
      this->ping_pong_arrive();
      if (!first) send_dq();
      first = false;
      visible_a = find_visible(stage(), kind_a);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(s_a);
    }
    this->ping_pong_arrive();
    if (!first) {
      await_ds(pair - 1);
      DqSums dq;
      issue_pair_dq(dq, pair - 1);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dq);
      stage_pair_dq(dq, pair - 1);
      send_dq();
    }
    await_ds(pair);
    DqSums dq;
    issue_pair_dq(dq, pair);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(dq);
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    arrive(&smem.step_empty[stage()]);
    arrive(&smem.step_empty[stage() + 1]);
    arrive(&smem.kv_empty);
    stage_pair_dq(dq, pair);
    send_dq();
    advance();
  }

  /// A work tile that no query sees: nothing to load, gradients zero.
  __device__ __forceinline__ void skip_pair() {
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 2; ++i) dk[i] = dv[i] = 0.0f;
    ptx::mbarrier_wait(&smem.q_full[stage() + 1], stage_phase());
    arrive(&smem.ds_full[buffer(pair)]);  // keeps its phase in step with the pairs
    await_ds(pair);
    arrive(&smem.pairs.ds_empty[buffer(pair)]);
    arrive(&smem.step_empty[stage()]);
    arrive(&smem.step_empty[stage() + 1]);
    await_staging(pair);
    arrive(&smem.dq_full[warpgroup]);
    advance();
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) this->ping_pong_arrive();
    for (;;) {
      ptx::mbarrier_wait(&smem.q_full[stage()], stage_phase());
      if (smem.step[stage()].kind & kStepStop) break;
      const WorkTile& work_tile = smem.work_tile[smem.step[stage()].work_tile_slot];
      if (work_tile.num_steps == 0) {
        skip_pair();
      } else {
        const uint32_t kv_phase = work_tile.flags & kWorkTileOddPhase ? 1 : 0;
        ptx::mbarrier_wait(&smem.k_full, kv_phase);
        if (work_tile.flags & kWorkTileZeroRows) {
          ptx::mbarrier_wait(&smem.v_full, kv_phase);
          this->zero_rows(smem.k, kBlockN, work_tile.covered);
          this->zero_rows(smem.v, kBlockN, work_tile.covered);
          this->zero_done();
        }
        run_pairs((work_tile.num_steps + 1) / 2, kv_phase);
      }
      write_gradients<Traits>(params, work_tile, fresh_thread(), dk, dv);
      __syncwarp();  // see Consumer::run
    }
    if (warpgroup == 0) this->ping_pong_wait();
    ptx::mbarrier_wait(&smem.q_full[stage() + 1], stage_phase());  // the writer of warpgroup 1 stops by this step
    await_staging(pair);
    arrive(&smem.dq_full[warpgroup]);  // nothing: stops the writer
  }
};

}  // namespace tangram::sm90::backward
