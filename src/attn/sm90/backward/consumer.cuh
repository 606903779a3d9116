// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the backward kernel: 64 keys against all query tiles of an item. Scores are transposed (keys
// by queries), so that P and dS are the register operands of dV += P dO and dK += dS Q; only dS passes through shared
// memory, for dQ = dS^T K, of which each warpgroup computes one half of the columns, one step late.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/backward/traits.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
struct Consumer {
  using Element = typename Traits::Element;
  static constexpr int kDimQk = Traits::kDimQk;
  static constexpr int kDimV = Traits::kDimV;
  static constexpr int kScores = kBlockM / 2;  // accumulators of 64 keys by kBlockM queries, per thread
  using Dq = typename Traits::Dq;
  static constexpr int kDqCols = Dq::kGroups0 * 8;  // columns of dq of one warpgroup, or more than its part
  static constexpr int kDqSums = kDqCols / 2;       // accumulators of 64 queries by kDqCols
  static constexpr int kNoTerms = -8;
  static constexpr uint32_t kZeroBarrier = 1;  // 1, 2: rows of shared operands are zero
  static constexpr uint32_t kTurnBarrier = 3;  // 3, 4: whose turn it is

  const Params& params;
  Smem<Traits>& smem;
  const uint32_t thread;     // among the consumers
  const uint32_t warpgroup;  // 0 or 1
  Cursor<Traits> here;       // of the current step

  float dk[kDimQk / 2], dv[kDimV / 2];
  // The other accumulators are local to a step: nothing of them may seem to live from one to the next.
  using Scores = float[kScores];
  using Packed = uint32_t[kScores / 2];
  using DqSums = float[kDqSums];

  __device__ Consumer(const Params& params_in, Smem<Traits>& smem_in)
      : params(params_in),
        smem(smem_in),
        thread(thread_index()),
        warpgroup(__shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1) {}

  /// Read once: reading it again takes a turn in the queue of shared-memory accesses.
  static __device__ __forceinline__ uint32_t thread_index() { return ptx::read_thread_index() - 128; }
  /// `thread`, hidden from the compiler, which would otherwise keep a dozen values derived from it in registers that
  /// the accumulators need.
  __device__ __forceinline__ uint32_t fresh_thread() const {
    uint32_t value = thread;
    ptx::make_opaque(value);
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
  /// Of the queries' terms (see kStatsFloats) those in columns [terms, terms + 3) are added, by 16 more columns of the
  /// reduction: keys have ones in three of them; the queries' other eight are the same again, times zero.
  template <int kTerms>
  __device__ __forceinline__ void issue_product(Scores& result, const void* keys, const void* queries,
                                                const float* stats) {
    const uint64_t a = ptx::wgmma_descriptor(ptx::smem_address(keys) + warpgroup * 64 * 128, 16, 1024);
    const uint64_t b = ptx::wgmma_descriptor(ptx::smem_address(queries), 16, 1024);
    const uint64_t ones =
        ptx::wgmma_descriptor_plain(ptx::smem_address(smem.ones[kTerms == 0 ? 0 : 1]), kTerms == 0 ? 256 : 128, 0);
    const uint64_t terms = ptx::wgmma_descriptor_plain(ptx::smem_address(stats), 0, 128);
    ptx::wgmma_fence();
    if constexpr (kTerms >= 0) ptx::wgmma_ss<__nv_bfloat16, kBlockM>(result, ones, terms, false);
#pragma unroll
    for (int k16 = 0; k16 < (kTerms == 4 ? kDimV : kDimQk) / 16; ++k16) {
      const uint32_t column = k16 % 4 * 32;
      ptx::wgmma_ss<Element, kBlockM>(result, ptx::wgmma_advance(a, k16 / 4 * Traits::kPanelBytesK + column),
                                      ptx::wgmma_advance(b, k16 / 4 * Traits::kPanelBytesQ + column),
                                      kTerms >= 0 || k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts sums += packed * rows, rows being [kBlockM, 2 * kSums].
  template <int kSums>
  __device__ __forceinline__ void issue_gradient(float (&sums)[kSums], const Packed& packed, const void* rows) {
    const uint64_t b = ptx::wgmma_descriptor(ptx::smem_address(rows), Traits::kPanelBytesQ, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kBlockM / 16; ++k16) {
      const uint32_t(&a)[4] = *reinterpret_cast<const uint32_t(*)[4]>(&packed[k16 * 4]);
      ptx::wgmma_rs<Element, 2 * kSums, 1>(sums, a, ptx::wgmma_advance(b, k16 * 2048), true);
    }
    ptx::wgmma_commit();
  }

  /// Starts dq = dS^T K for the 64 queries and this warpgroup's columns.
  __device__ __forceinline__ void issue_dq(DqSums& dq, uint32_t buffer) {
    const uint64_t a = ptx::wgmma_descriptor(ptx::smem_address(smem.ds[buffer]), 16, 1024);
    const uint32_t k_columns = kDqCols == 64 ? warpgroup * Traits::kPanelBytesK : warpgroup * kDqCols * 2;
    const uint64_t b = ptx::wgmma_descriptor(ptx::smem_address(smem.k) + k_columns, 16, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kBlockN / 16; ++k16) {
      ptx::wgmma_ss<Element, kDqCols, 1, 1>(dq, ptx::wgmma_advance(a, k16 * 2048), ptx::wgmma_advance(b, k16 * 2048),
                                            k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Adds dq of a step to its slab, in two parts: the first empties the registers, the second makes sure that it gets
  /// there. A warp's part of a slab is contiguous: [column group of 8][lane].
  __device__ __forceinline__ void stage_dq(const DqSums& dq, const Cursor<Traits>& at) {
    const uint32_t self = fresh_thread();
    const uint32_t part = Dq::kEven ? self / 32 * Traits::kWarpSlabFloats
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

  /// Zeroes rows of a tile of all panels whose bit in `covered` is 0. Each warpgroup does so for itself, so that
  /// neither waits for the other: what one multiplies, the other can only overwrite by the same zeros.
  template <int kPanels = Traits::kPanelsQk>
  __device__ __forceinline__ void zero_rows(unsigned char* tile, int num_rows, const uint32_t* covered) {
#pragma unroll 1
    for (int i = fresh_thread() % 128; i < num_rows * kPanels * 8; i += 128) {
      const int row = i / 8 % num_rows;
      if (!(covered[row / 32] >> (row % 32) & 1)) *reinterpret_cast<uint4*>(tile + i * 16) = uint4{};
    }
  }
  __device__ __forceinline__ void zero_done() {
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kZeroBarrier + warpgroup, 128);
  }

  /// Which of this thread's scores of a masked tile are visible: bit 16 r + 2 j + e stands for score 4 j + 2 r + e.
  /// Both rows at once, and without branches where there are no intervals: a long chain otherwise, which S waits for.
  __device__ __forceinline__ uint32_t visible_scores(const StepMessage& message) {
    const Item& item = smem.item[message.item_slot];
    const uint32_t self = fresh_thread();
    const int32_t row = self / 32 * 16 + self % 32 / 4;
    const int32_t key = item.row_begin + row;
    int32_t begin[2], end[2];
    if (message.interval_begin < 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t k = key + r * 8;
        begin[r] = max(message.slice_q_begin, k + message.min_diag);
        end[r] = message.row_begin <= k && k < min(message.row_end, item.row_end)
                     ? min(message.slice_q_end, k + message.max_diag + 1)
                     : 0;
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        begin[r] = end[r] = 0;
        if (key + r * 8 < item.row_end) {
          const RowInterval interval = params.intervals[message.interval_begin + row + r * 8];
          begin[r] = interval.begin;
          end[r] = interval.end;
        }
      }
    }
    const int32_t first = message.q0 + self % 4 * 2;
    const int32_t q_end = message.q_end;
    uint32_t visible = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      visible |= (columns_before(min(end[r], q_end) - first) & ~columns_before(begin[r] - first)) << (16 * r);
    }
    return visible;
  }
  /// Bits of this thread's columns 8 j + e (e = 0, 1) below `end`.
  static __device__ __forceinline__ uint32_t columns_before(int32_t end) {
    const int32_t inside = min(max(end, 0), kBlockM);
    return (1u << (inside / 8 * 2 + min(inside % 8, 2))) - 1;
  }
  /// Whether score i of this thread is, i being a constant.
  static __device__ __forceinline__ bool is_visible(uint32_t visible, int i) {
    return visible >> (i / 2 % 2 * 16 + i / 4 * 2 + i % 2) & 1;
  }

  /// s becomes P.
  __device__ __forceinline__ void exponentiate(Scores& s, bool masked, uint32_t visible) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = ptx::exp2_approx(s[i] * params.scale_log2);
    if (masked) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = is_visible(visible, i) ? s[i] : 0.0f;
    }
  }

  /// As exponentiate and pack; s becomes P times the derivative of the cap, 1 - tanh^2.
  __device__ __forceinline__ void exponentiate_capped(Scores& s, Packed& packed_p, bool masked, uint32_t visible) {
    const float* stats = smem.stats[here.stage()] + fresh_thread() % 4 * 8;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      // -lse of two queries, loaded as needed for lack of registers.
      const float lse[2] = {sum_of_three(*reinterpret_cast<const uint2*>(stats + j * 32)),
                            sum_of_three(*reinterpret_cast<const uint2*>(stats + j * 32 + 4))};
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = s[j * 4 + i];
        const float capped = tanh_accurate(score * params.cap_inner);
        p[i] = ptx::exp2_approx(capped * params.cap_outer + lse[i % 2]);
        if (masked && !is_visible(visible, j * 4 + i)) p[i] = 0.0f;
        score = p[i] * (1.0f - capped * capped);
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

  /// dp, which is dP - delta, becomes dS = P * (dP - delta).
  __device__ __forceinline__ void score_gradients(Scores& dp, const Scores& p) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) dp[i] *= p[i];
  }

  static __device__ __forceinline__ void pack(Packed& to, const Scores& from) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) to[i] = pack_pair<Element>(from[i * 2], from[i * 2 + 1]);
  }

  __device__ __forceinline__ void store_ds(const Packed& packed_ds, unsigned char* ds) {
    const uint32_t self = fresh_thread();
    const int row = self / 32 * 16 + self % 16;
    unsigned char* base = ds + row * 128;
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
  /// `meanwhile` runs beside them. What is visible is found before `drain`, which waits for the tensor cores in any
  /// case; with softcap later, for lack of registers.
  template <typename Drain, typename Meanwhile>
  __device__ __forceinline__ void start_step(Scores& s, Scores& dp, uint32_t& visible, const Drain& drain,
                                             const Meanwhile& meanwhile) {
    const uint32_t stage = here.stage();
    ptx::mbarrier_wait(&smem.q_full[stage], here.stage_phase());
    if (params.covered_queries && smem.step[stage].flags & kStepZeroRows) zero_step(stage);
    issue_product<Traits::kSoftcap ? kNoTerms : 0>(s, smem.k, smem.q[stage], smem.stats[stage]);
    const auto see = [&] { visible = smem.step[stage].flags & kStepMasked ? visible_scores(smem.step[stage]) : 0; };
    if constexpr (!Traits::kSoftcap) see();
    drain();
    ptx::mbarrier_wait(&smem.dout_full[stage], here.stage_phase());
    issue_product<4>(dp, smem.v, smem.dout[stage], smem.stats[stage]);
    meanwhile();
    if constexpr (Traits::kSoftcap) see();
    ptx::wgmma_wait<1>();
    ptx::pin_registers(s);
  }

  /// From S, and dP in flight, to dV and dK in flight, and dS in shared memory.
  __device__ __forceinline__ void finish_step(Scores& s, Scores& dp, uint32_t visible, bool first) {
    const uint32_t stage = here.stage();
    const bool masked = smem.step[stage].flags & kStepMasked;
    Packed packed_p, packed_ds;
    if constexpr (Traits::kSoftcap) {
      exponentiate_capped(s, packed_p, masked, visible);
    } else {
      exponentiate(s, masked, visible);
      pack(packed_p, s);
    }
    issue_gradient(dv, packed_p, smem.dout[stage]);
    ptx::wgmma_wait<1>();
    ptx::pin_registers(dp);
    score_gradients(dp, s);
    pack(packed_ds, dp);
    if (!first) wait_ds(here.previous());  // see Smem::ds
    store_ds(packed_ds, smem.ds[here.buffer()]);
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
      // In the first step this multiplies what an old buffer holds, for nobody.
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
            pass_turn();
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
    pass_turn();
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

  __device__ __forceinline__ void zero_step(uint32_t stage) {
    ptx::mbarrier_wait(&smem.dout_full[stage], here.stage_phase());
    zero_rows(smem.q[stage], kBlockM, smem.step[stage].covered);
    zero_rows<Traits::kPanelsV>(smem.dout[stage], kBlockM, smem.step[stage].covered);
    zero_done();
  }

  /// An item that no query sees: nothing to load, gradients zero.
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
          ptx::mbarrier_wait(&smem.v_full, kv_phase);
          zero_rows(smem.k, kBlockN, smem.item[slot].covered);
          zero_rows<Traits::kPanelsV>(smem.v, kBlockN, smem.item[slot].covered);
          zero_done();
        }
        run_steps(smem.item[slot].num_steps, kv_phase);
      }
      write_gradients<Traits>(params, smem.item[slot], fresh_thread(), dk, dv);
      // Else the compiler takes the warp for split from here on, and keeps no descriptor of the loop in uniform
      // registers.
      __syncwarp();
    }
    if (warpgroup == 0) take_turn();
    wait_staging(here);
    send_dq();  // nothing: stops the writer
  }
};

}  // namespace tangram::sm90::backward
