// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the backward kernel: 64 keys against all query tiles of an item. Scores are transposed (keys
// by queries), so that P and dS are the register operands of dV += P dO and dK += dS Q; only dS passes through shared
// memory, for dQ = dS^T K, of which each warpgroup computes one half of the columns, one step late.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/backward/traits.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
struct Consumer {
  using Element = typename Traits::Element;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kScores = kBlockM / 2;   // accumulators of 64 keys by kBlockM queries, per thread
  static constexpr int kDqCols = kHeadDim / 2;  // columns of dq of one warpgroup
  static constexpr int kDqSums = kDqCols / 2;   // accumulators of 64 queries by kDqCols
  static constexpr uint32_t kZeroBarrier = 1;   // 1, 2: rows of shared operands are zero
  static constexpr uint32_t kTurnBarrier = 3;   // 3, 4: whose turn it is

  const Params& params;
  Smem<Traits>& smem;
  const uint32_t thread;     // among the consumers
  const uint32_t warpgroup;  // 0 or 1
  Cursor<Traits> here;       // of the current step

  float dk[kHeadDim / 2], dv[kHeadDim / 2];
  // The other accumulators are local to a step: nothing of them may seem to live from one to the next.
  using Scores = float[kScores];
  using Packed = uint32_t[kScores / 2];
  using DqSums = float[kDqSums];

  __device__ Consumer(const Params& params_in, Smem<Traits>& smem_in)
      : params(params_in),
        smem(smem_in),
        thread(threadIdx.x - 128),
        warpgroup(__shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1) {}

  /// `thread`, hidden from the compiler, which would otherwise keep a dozen values derived from it in registers that
  /// the accumulators need.
  __device__ __forceinline__ uint32_t fresh_thread() const {
    uint32_t value = thread;
    asm volatile("" : "+r"(value));
    return value;
  }

  __device__ __forceinline__ void wait_ds(const Cursor<Traits>& at) {
    ptx::mbarrier_wait(&smem.ds_full[at.buffer()], at.buffer_phase());
  }
  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(barrier);
  }

  /// Starts result = keys * queries^T for this warpgroup's 64 keys; both operands contiguous along the head dimension.
  __device__ __forceinline__ void issue_product(Scores& result, const void* keys, const void* queries) {
    const uint64_t a = ptx::wgmma_descriptor(ptx::smem_address(keys) + warpgroup * 64 * 128, 16, 1024);
    const uint64_t b = ptx::wgmma_descriptor(ptx::smem_address(queries), 16, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kHeadDim / 16; ++k16) {
      const uint32_t column = k16 % 4 * 32;
      ptx::wgmma_ss<Element, kBlockM>(result, ptx::wgmma_advance(a, k16 / 4 * Traits::kPanelBytesK + column),
                                      ptx::wgmma_advance(b, k16 / 4 * Traits::kPanelBytesQ + column), k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts sums += packed * rows, rows being [kBlockM, kHeadDim].
  __device__ __forceinline__ void issue_gradient(float (&sums)[kHeadDim / 2], const Packed& packed, const void* rows) {
    const uint64_t b = ptx::wgmma_descriptor(ptx::smem_address(rows), Traits::kPanelBytesQ, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kBlockM / 16; ++k16) {
      const uint32_t(&a)[4] = *reinterpret_cast<const uint32_t(*)[4]>(&packed[k16 * 4]);
      ptx::wgmma_rs<Element, kHeadDim, 1>(sums, a, ptx::wgmma_advance(b, k16 * 2048), true);
    }
    ptx::wgmma_commit();
  }

  /// Starts dq = dS^T K for the 64 queries and this warpgroup's columns.
  __device__ __forceinline__ void issue_dq(DqSums& dq, uint32_t buffer) {
    const uint64_t a = ptx::wgmma_descriptor(ptx::smem_address(smem.ds[buffer]), 16, 1024);
    const uint32_t k_columns = kHeadDim == 128 ? warpgroup * Traits::kPanelBytesK : warpgroup * 64;
    const uint64_t b = ptx::wgmma_descriptor(ptx::smem_address(smem.k) + k_columns, 16, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kBlockN / 16; ++k16) {
      ptx::wgmma_ss<Element, kDqCols, 1, 1>(dq, ptx::wgmma_advance(a, k16 * 2048), ptx::wgmma_advance(b, k16 * 2048),
                                            k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Adds dq to its slab, in two parts: the first empties the registers, the second makes sure that it gets there.
  /// A warp's part of a slab is contiguous: [column group of 8][lane].
  __device__ __forceinline__ void stage_dq(const DqSums& dq) {
    const uint32_t self = fresh_thread();
    float4* staged = reinterpret_cast<float4*>(smem.dq + self / 32 * Traits::kWarpSlabFloats) + self % 32;
    if (ptx::elect_one()) ptx::tma_store_wait_read<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kDqSums / 4; ++i) staged[i * 32] = {dq[i * 4], dq[i * 4 + 1], dq[i * 4 + 2], dq[i * 4 + 3]};
  }
  __device__ __forceinline__ void send_dq(int32_t slab, int32_t turn) {
    ptx::fence_proxy_async();
    if constexpr (Traits::kDeterministic) wait_slab(slab, turn);
    __syncwarp();
    if (ptx::elect_one()) {
      const uint32_t part = fresh_thread() / 32 * Traits::kWarpSlabFloats;
      ptx::bulk_reduce_add_f32(params.dq_sums + int64_t{slab} * Traits::kSlabFloats + part, smem.dq + part,
                               Traits::kWarpSlabFloats * 4);
      ptx::tma_store_commit();
      if constexpr (Traits::kDeterministic) pass_slab(slab);
    }
  }

  /// NOTE [turns] Items are dealt in the order of their tickets, and the turn of an item at a slab is the number of
  /// items with smaller tickets that add to it. An item waits only for items dealt before it, so among the items being
  /// worked on the one with the smallest ticket never waits: no deadlock, however few CTAs run. A turn is eight warps'
  /// arrivals.
  __device__ __forceinline__ void wait_slab(int32_t dq_slab, int32_t dq_turn) {
    if (ptx::elect_one()) {
      while (ptx::load_acquire(params.turns + dq_slab) < dq_turn * kConsumerWarps) {
      }
    }
    __syncwarp();
  }
  /// By the thread that added.
  __device__ __forceinline__ void pass_slab(int32_t dq_slab) {
    ptx::tma_store_wait<0>();
    __threadfence();
    ptx::add_release(params.turns + dq_slab, 1);
  }

  /// Zeroes rows of a [num_rows, kHeadDim] tile whose bit in `covered` is 0. Each warpgroup does so for itself, so that
  /// neither waits for the other: what one multiplies, the other can only overwrite by the same zeros.
  __device__ __forceinline__ void zero_rows(unsigned char* tile, int num_rows, const uint32_t* covered) {
#pragma unroll 1
    for (int i = fresh_thread() % 128; i < num_rows * Traits::kPanels * 8; i += 128) {
      const int row = i / 8 % num_rows;
      if (!(covered[row / 32] >> (row % 32) & 1)) *reinterpret_cast<uint4*>(tile + i * 16) = uint4{};
    }
  }
  __device__ __forceinline__ void zero_done() {
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kZeroBarrier + warpgroup, 128);
  }

  /// Visible queries [begin, end) of this thread's two keys, counted from its first query.
  __device__ __forceinline__ void visible_queries(const StepMessage& message, int32_t (&begin)[2], int32_t (&end)[2]) {
    const Item& item = smem.item[message.item_slot];
    const uint32_t self = fresh_thread();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = self / 32 * 16 + self % 32 / 4 + r * 8;
      const int32_t key = item.row_begin + row;
      begin[r] = end[r] = 0;
      if (key < item.row_end) {
        if (message.interval_begin >= 0) {
          const RowInterval interval = params.intervals[message.interval_begin + row];
          begin[r] = interval.begin;
          end[r] = interval.end;
        } else if (key >= message.row_begin && key < message.row_end) {
          begin[r] = max(message.slice_q_begin, key + message.min_diag);
          end[r] = min(message.slice_q_end, key + message.max_diag + 1);
        }
      }
      const int32_t first = message.q0 + self % 4 * 2;
      begin[r] -= first;
      end[r] -= first;
    }
  }

  /// Row statistics of this thread's queries: lse (first = 0) or delta (first = 2). Loaded ahead of the wait for the
  /// scores that they meet.
  using Stats = float2[kScores / 4];
  __device__ __forceinline__ void load_stats(Stats& to, int first) {
    const float* stats = smem.stats[here.stage()][fresh_thread() % 4] + first;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) to[j] = *reinterpret_cast<const float2*>(stats + j * 16);
  }

  /// s becomes P.
  __device__ __forceinline__ void exponentiate(Scores& s, const Stats& lse, const StepMessage& message) {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[j * 4 + i] = ptx::exp2_approx(s[j * 4 + i] * params.scale_log2 - (i % 2 ? lse[j].y : lse[j].x));
    }
    if (message.flags & kStepMasked) {
      int32_t begin[2], end[2];
      visible_queries(message, begin, end);
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int32_t column = i / 4 * 8 + i % 2;
        const int r = i / 2 % 2;
        if (column < begin[r] || column >= end[r]) s[i] = 0.0f;
      }
    }
  }

  /// As exponentiate, with s left as tanh of the capped score, and P only in packed form.
  __device__ __forceinline__ void exponentiate_capped(Scores& s, Packed& packed_p, const Stats& lse,
                                                      const StepMessage& message) {
    const bool masked = message.flags & kStepMasked;
    const float inner = params.softmax_scale / params.softcap;
    const float outer = params.softcap * kLog2e;
    int32_t begin[2] = {0, 0}, end[2] = {kBlockM, kBlockM};
    if (masked) visible_queries(message, begin, end);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = s[j * 4 + i];
        score = tanh_accurate(score * inner);
        p[i] = ptx::exp2_approx(score * outer - (i % 2 ? lse[j].y : lse[j].x));
        const int32_t column = j * 8 + i % 2;
        if (masked && (column < begin[i / 2] || column >= end[i / 2])) p[i] = 0.0f;
      }
      packed_p[j * 2] = pack_pair<Element>(p[0], p[1]);
      packed_p[j * 2 + 1] = pack_pair<Element>(p[2], p[3]);
    }
  }
  /// tanh through exp2: tanh.approx is good to 2^-11 only, which a large softcap would multiply.
  static __device__ __forceinline__ float tanh_accurate(float x) {
    const float e = ptx::exp2_approx(-2.0f * kLog2e * fabsf(x));
    return copysignf(__fdividef(1.0f - e, 1.0f + e), x);
  }

  /// dp becomes dS = P * (dP - delta), packed and, transposed for nobody, stored for dq.
  __device__ __forceinline__ void score_gradients(Scores& dp, Scores& s, const Packed& packed_p,
                                                  const StepMessage& message) {
    const float* stats = smem.stats[here.stage()][fresh_thread() % 4] + 2;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 delta = *reinterpret_cast<const float2*>(stats + j * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[j * 4 + i] -= i % 2 ? delta.y : delta.x;
    }
    if constexpr (Traits::kSoftcap) {
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        const float2 p = unpack_pair<Element>(packed_p[i / 2]);
        dp[i] *= 1.0f - s[i] * s[i];
        dp[i + 1] *= 1.0f - s[i + 1] * s[i + 1];
        s[i] = p.x;
        s[i + 1] = p.y;
      }
    }
    if (message.flags & kStepMasked) {  // what is not visible may hold NaN
#pragma unroll
      for (int i = 0; i < kScores; ++i) dp[i] = s[i] == 0.0f ? 0.0f : dp[i];
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) dp[i] *= s[i];
  }

  static __device__ __forceinline__ void pack(Packed& to, const Scores& from) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) to[i] = pack_pair<Element>(from[i * 2], from[i * 2 + 1]);
  }

  __device__ __forceinline__ void store_ds(const Packed& packed_ds, uint32_t buffer) {
    const uint32_t self = fresh_thread();
    const int row = self / 32 * 16 + self % 16;
    unsigned char* base = smem.ds[buffer] + row * 128;
    const int chunk = self % 32 / 16 ^ row % 8;
#pragma unroll
    for (int k16 = 0; k16 < kBlockM / 16; ++k16) {
      ptx::store_matrix_x4(base + ((chunk ^ k16 * 2) << 4), packed_ds[k16 * 4], packed_ds[k16 * 4 + 1],
                           packed_ds[k16 * 4 + 2], packed_ds[k16 * 4 + 3]);
    }
  }

  /// With turns, the warpgroups queue their matmuls after dS one after the other: while one keeps the tensor cores busy
  /// with them, the other has time for exponentials.
  __device__ __forceinline__ void take_turn() {
    if constexpr (Traits::kTurns) ptx::named_barrier_sync(kTurnBarrier + warpgroup, kConsumerThreads);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Traits::kTurns) ptx::named_barrier_arrive(kTurnBarrier + (warpgroup ^ 1), kConsumerThreads);
  }

  /// Starts S and dP of the current step and waits for S. Between the two, `drain` takes out what was issued before;
  /// `meanwhile` runs beside them.
  template <typename Drain, typename Meanwhile>
  __device__ __forceinline__ void start_step(Scores& s, Scores& dp, Stats& lse, const Drain& drain,
                                             const Meanwhile& meanwhile) {
    const uint32_t stage = here.stage();
    ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
    if (params.covered_queries && smem.step[stage].flags & kStepZeroRows) zero_step(stage);
    issue_product(s, smem.k, smem.q[stage]);
    drain();
    ptx::mbarrier_wait(&smem.dout_full[stage], here.stage_phase());
    issue_product(dp, smem.v, smem.dout[stage]);
    meanwhile();
    load_stats(lse, 0);
    ptx::wgmma_wait<1>();
    ptx::pin_registers(s);
  }

  /// From S, and dP in flight, to dV and dK in flight, and dS in shared memory.
  __device__ __forceinline__ void finish_step(Scores& s, Scores& dp, const Stats& lse, bool first) {
    const uint32_t stage = here.stage();
    const StepMessage& message = smem.step[stage];
    Packed packed_p, packed_ds;
    if constexpr (Traits::kSoftcap) {
      exponentiate_capped(s, packed_p, lse, message);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dp);
      score_gradients(dp, s, packed_p, message);
      issue_gradient(dv, packed_p, smem.dout[stage]);
    } else {
      exponentiate(s, lse, message);
      pack(packed_p, s);
      issue_gradient(dv, packed_p, smem.dout[stage]);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(dp);
      score_gradients(dp, s, packed_p, message);
    }
    pack(packed_ds, dp);
    if (!first) wait_ds(here.previous());  // see Smem::ds
    store_ds(packed_ds, here.buffer());
    take_turn();
    issue_gradient(dk, packed_ds, smem.q[stage]);
    ptx::fence_proxy_async();
    arrive(&smem.ds_full[here.buffer()]);
  }

  /// All steps of an item. The matmuls are queued so that every wait leaves some in flight. dQ of a step comes a step
  /// late, so that the warpgroups need not be in step, and leaves its registers before dP needs them:
  ///   S dP | exponentials | dV | dS | dK | dQ S' | add dQ | dP' | ...
  /// The loop is cut where nothing but dP is in flight: registers of operands in flight around a loop's end would
  /// count twice.
  __device__ __forceinline__ void run_steps(int32_t num_steps, uint32_t kv_phase) {
    Scores s, dp;
    Stats lse;
    int32_t slab = -1, turn = 0;  // of the step before the current one, whose dQ is to come
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dk[i] = dv[i] = 0.0f;
    ptx::pin_registers(dk);  // zeros now, not in between matmuls
    ptx::pin_registers(dv);
    start_step(s, dp, lse, [&] { ptx::mbarrier_wait(&smem.v_full, kv_phase); }, [] {});
    for (;;) {
      finish_step(s, dp, lse, slab < 0);
      if (--num_steps == 0) break;
      // In the first step this multiplies what an old buffer holds, for nobody.
      const Cursor<Traits> before = here.previous();
      DqSums dq;
      issue_dq(dq, before.buffer());
      ptx::wgmma_wait<1>();  // dV and dK: frees P and dS before S needs registers
      const uint32_t stage = here.stage();
      const int32_t next_slab = smem.step[stage].dq_slab, next_turn = smem.step[stage].turn;
      arrive(&smem.step_empty[stage]);
      here.advance();
      start_step(
          s, dp, lse,
          [&] {
            pass_turn();
            ptx::wgmma_wait<1>();
            ptx::pin_registers(dq);
            if (slab >= 0) stage_dq(dq);
          },
          [&] {
            if (slab >= 0) send_dq(slab, turn);
            slab = next_slab;
            turn = next_turn;
          });
    }
    const uint32_t stage = here.stage();
    pass_turn();
    if (slab >= 0) {
      const Cursor<Traits> before = here.previous();
      DqSums dq;
      issue_dq(dq, before.buffer());
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dq);
      stage_dq(dq);
      send_dq(slab, turn);
    }
    slab = smem.step[stage].dq_slab;
    turn = smem.step[stage].turn;
    wait_ds(here);
    DqSums dq;
    issue_dq(dq, here.buffer());
    ptx::wgmma_wait<0>();
    ptx::pin_registers(dq);
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    arrive(&smem.step_empty[stage]);
    arrive(&smem.kv_empty);
    stage_dq(dq);
    send_dq(slab, turn);
    here.advance();
  }

  __device__ __forceinline__ void zero_step(uint32_t stage) {
    ptx::mbarrier_wait(&smem.dout_full[stage], here.stage_phase());
    zero_rows(smem.q[stage], kBlockM, smem.step[stage].covered);
    zero_rows(smem.dout[stage], kBlockM, smem.step[stage].covered);
    zero_done();
  }

  /// An item that no query sees: nothing to load, gradients zero.
  __device__ __forceinline__ void skip_steps() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dk[i] = dv[i] = 0.0f;
    arrive(&smem.ds_full[here.buffer()]);  // keeps its phase in step with the cursor
    wait_ds(here);
    arrive(&smem.step_empty[here.stage()]);
    here.advance();
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) pass_turn();
    for (;;) {
      const uint32_t stage = here.stage();
      ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
      if (smem.step[stage].flags & kStepStop) break;
      const int32_t slot = smem.step[stage].item_slot;
      if (smem.item[slot].num_steps == 0) {
        skip_steps();
      } else {
        const uint32_t kv_phase = smem.item[slot].flags & kItemOddPhase ? 1 : 0;
        ptx::mbarrier_wait(&smem.k_full, kv_phase);
        if (smem.item[slot].flags & kItemZeroRows) {
          zero_rows(smem.k, kBlockN, smem.item[slot].covered);
          zero_done();
        }
        run_steps(smem.item[slot].num_steps, kv_phase);
      }
      write_gradients<Traits>(params, smem.item[slot], fresh_thread(), dk, dv);
    }
    if (warpgroup == 0) take_turn();
    if (ptx::elect_one()) ptx::tma_store_wait<0>();  // shared memory must outlive the reductions
  }
};

}  // namespace tangram::sm90::backward
