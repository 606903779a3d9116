// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the forward kernel: 64 packed rows, S = Q K^T, online softmax, O += P V.
#pragma once

#include "attn/sm90/forward/epilogue.cuh"
#include "attn/sm90/forward/softmax.cuh"
#include "attn/sm90/forward/traits.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90 {

template <typename Traits>
struct Consumer {
  using Element = typename Traits::Element;
  static constexpr int kBlockN = Traits::kBlockN;
  static constexpr int kGroups16 = kBlockN / 16;
  static constexpr int kNarrow = 64;           // keys of the narrow matmuls at the ends of runs
  static constexpr uint32_t kTurnBarrier = 1;  // named barriers 1, 2: whose turn it is to feed the tensor cores
  static constexpr uint32_t kZeroBarrier = 3;  // named barriers 3, 4: one warpgroup has zeroed rows of V

  const ForwardParams& params;
  ForwardSmem<Traits>& smem;
  const int warpgroup;  // 0 or 1
  const int lane;
  const int tile_row;  // of this thread's first row, in packed rows
  RingPosition<Traits::kStages> ring;
  uint32_t q_phase = 0;

  float o[Traits::kHeadDim / 2];
  uint32_t p[kGroups16][4];
  RowState state;
  int32_t pending = 0;  // keys of the step whose product with V is still to be made: 0, kNarrow or kBlockN
  int32_t interval_begin[2], interval_end[2];
  // The step whose probabilities wait in p for their product with V.
  int32_t v_stage;
  uint32_t v_phase;
  int32_t v_begin16, v_valid;

  __device__ Consumer(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in)
      : params(params_in),
        smem(smem_in),
        warpgroup(__shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1),
        lane(static_cast<int>(threadIdx.x) % 32),
        tile_row(warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4) {}

  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void take_turn() { ptx::named_barrier_sync(kTurnBarrier + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() { ptx::named_barrier_arrive(kTurnBarrier + (warpgroup ^ 1), 256); }

  /// Starts S = Q K^T for kN keys of the current stage, from row 16 * begin16 on.
  template <int kN>
  __device__ __forceinline__ void issue_scores(float (&scores)[kN / 2], int begin16) {
    const uint64_t q = ptx::wgmma_descriptor(ptx::smem_address(smem.q) + warpgroup * 64 * 128, 16, 1024);
    const uint64_t k = ptx::wgmma_descriptor(ptx::smem_address(smem.k[ring.stage]) + begin16 * 2048, 16, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < Traits::kPanels; ++panel) {
#pragma unroll
      for (int k16 = 0; k16 < 4; ++k16) {
        ptx::wgmma_ss<Element, kN>(scores, ptx::wgmma_advance(q, panel * Traits::kPanelBytesQ + k16 * 32),
                                   ptx::wgmma_advance(k, panel * Traits::kPanelBytesK + k16 * 32), panel + k16 > 0);
      }
    }
    ptx::wgmma_commit();
  }

  /// Starts O += P V for the pending step of kN keys, whose V must have arrived.
  template <int kN>
  __device__ __forceinline__ void issue_output() {
    const uint64_t v =
        ptx::wgmma_descriptor(ptx::smem_address(smem.v[v_stage]) + v_begin16 * 2048, Traits::kPanelBytesK, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int g = 0; g < kN / 16; ++g) {
      ptx::wgmma_rs<Element, Traits::kHeadDim, 1>(o, p[g], ptx::wgmma_advance(v, g * 2048), true);
    }
    ptx::wgmma_commit();
  }

  /// Zeroes the rows of the pending V that nobody sees: their probabilities are 0, but 0 * NaN is NaN. Both warpgroups
  /// may write the same zeros.
  template <int kN>
  __device__ __forceinline__ void clear_unseen_v() {
    const int end = v_begin16 * 16 + kN;
    if (v_valid >= end) return;
    const int thread = threadIdx.x % 128;
#pragma unroll 1
    for (int i = v_valid * 8 + thread; i < end * 8; i += 128) {
#pragma unroll
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        *reinterpret_cast<uint4*>(smem.v[v_stage] + panel * Traits::kPanelBytesK + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kZeroBarrier + warpgroup, 128);
  }

  __device__ __forceinline__ void load_intervals(const StepMessage& step) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t local_row = (tile_row + 8 * r) >> params.pack_log2;
      const int32_t row = step.row0 + local_row;
      interval_begin[r] = interval_end[r] = 0;
      if (step.interval_begin >= 0) {
        if (local_row < step.num_rows) {
          const RowInterval interval = params.intervals[step.interval_begin + local_row];
          interval_begin[r] = interval.begin;
          interval_end[r] = interval.end;
        }
      } else if (row >= step.row_begin && row < step.row_end) {
        interval_begin[r] = max(step.slice_k_begin, row + step.min_diag);
        interval_end[r] = min(step.slice_k_end, row + step.max_diag + 1);
      }
    }
  }

  /// Softmax of the scores of kN keys from `first_key` on; true when o must be multiplied by `rescale`.
  template <int kN>
  __device__ __forceinline__ bool apply_softmax(float (&s)[kN / 2], bool masked, int32_t first_key,
                                                float (&rescale)[2]) {
    if (masked) {
      const int32_t shift = first_key + 2 * (lane % 4);
      const int32_t begin[2] = {interval_begin[0] - shift, interval_begin[1] - shift};
      const int32_t end[2] = {interval_end[0] - shift, interval_end[1] - shift};
      mask_scores(s, begin, end);
    }
    if constexpr (Traits::kSoftcap) apply_softcap(s);
    return exponentiate(s, state, params.exp_scale, params.slack, rescale);
  }

  /// Replaces scores by softcap * tanh(scale * score / softcap), and keeps the largest before that.
  template <int kCount>
  __device__ __forceinline__ void apply_softcap(float (&s)[kCount]) {
    const float inner = params.inner_scale;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      state.largest[(i / 2) % 2] = fmaxf(state.largest[(i / 2) % 2], s[i]);
      s[i] = s[i] == minus_infinity() ? s[i] : params.softcap * ptx::tanh_approx(s[i] * inner);
    }
  }

  template <int kN>
  __device__ __forceinline__ void convert_probabilities(const float (&s)[kN / 2]) {
#pragma unroll
    for (int g = 0; g < kN / 16; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[g][i] = pack_pair<Element>(s[8 * g + 2 * i], s[8 * g + 2 * i + 1]);
    }
  }

  __device__ __forceinline__ void rescale_output(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 2; ++i) o[i] *= rescale[(i / 2) % 2];
  }

  template <int kN>
  __device__ __forceinline__ void wait_pending_v() {
    ptx::mbarrier_wait(&smem.v_full[v_stage], v_phase);
    clear_unseen_v<kN>();
  }

  template <int kN>
  __device__ __forceinline__ void flush_pending() {
    wait_pending_v<kN>();
    issue_output<kN>();
    ptx::wgmma_wait<0>();
    arrive(&smem.v_empty[v_stage]);
  }

  __device__ __forceinline__ void flush_pending() {
    const int32_t width = __shfl_sync(0xffffffff, pending, 0);
    if (width == kBlockN) flush_pending<kBlockN>();
    if (width == kNarrow) flush_pending<kNarrow>();
    pending = 0;
  }

  /// One step of which this warpgroup sees at most kN keys. The product with V of the pending step of kPendingN keys
  /// (0: none) runs under this one's softmax.
  template <int kPendingN, int kN>
  __device__ __forceinline__ void visible_step(const StepMessage& step, int32_t flags, uint32_t window) {
    const int begin16 = min(static_cast<int>(window & 0xff), kGroups16 - kN / 16);
    float s[kN / 2];
    take_turn();
    issue_scores<kN>(s, begin16);
    if constexpr (kPendingN > 0) {
      wait_pending_v<kPendingN>();
      issue_output<kPendingN>();
    }
    pass_turn();
    ptx::wgmma_wait<kPendingN == 0 ? 0 : 1>();
    if (flags & kStepLast) arrive(&smem.q_empty);
    const bool masked = kN < kBlockN || window >> 16;
    if (flags & kStepNewRun) load_intervals(step);
    const int32_t first_key = step.k0 + begin16 * 16;
    const int32_t valid = __shfl_sync(0xffffffff, step.v_valid, 0);
    __syncwarp();
    arrive(&smem.k_empty[ring.stage]);
    float rescale[2];
    const bool moved = apply_softmax<kN>(s, masked, first_key, rescale);
    // The wait stands in both branches because ptxas moves one that it finds in the block of the exponentials above
    // them, and the product with V would no longer run under the softmax.
    if (moved) {
      if constexpr (kPendingN > 0) ptx::wgmma_wait<0>();
      rescale_output(rescale);
    } else {
      if constexpr (kPendingN > 0) ptx::wgmma_wait<0>();
    }
    if constexpr (kPendingN > 0) arrive(&smem.v_empty[v_stage]);
    convert_probabilities<kN>(s);
    v_stage = ring.stage;
    v_phase = ring.phase;
    v_begin16 = begin16;
    v_valid = valid;
    pending = kN;
  }

  template <int kPendingN>
  __device__ __forceinline__ void visible_step(const StepMessage& step, int32_t flags, uint32_t window) {
    if (((window >> 8) & 0xff) * 16 > kNarrow) {
      visible_step<kPendingN, kBlockN>(step, flags, window);
    } else {
      visible_step<kPendingN, kNarrow>(step, flags, window);
    }
  }

  __device__ __forceinline__ void skipped_step(const StepMessage& step, int32_t flags) {
    take_turn();
    pass_turn();
    if (flags & kStepLast) arrive(&smem.q_empty);
    if (flags & kStepNewRun) load_intervals(step);
    __syncwarp();
    arrive(&smem.k_empty[ring.stage]);
    ptx::mbarrier_wait(&smem.v_full[ring.stage], ring.phase);
    arrive(&smem.v_empty[ring.stage]);
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) pass_turn();
    for (;;) {
      ptx::mbarrier_wait(&smem.k_full[ring.stage], ring.phase);
      const StepMessage& step = smem.step[ring.stage];
      // The shuffle tells the compiler that the value, and so each branch on it, is the same in the whole warp.
      const int32_t flags = __shfl_sync(0xffffffff, step.flags, 0);
      if (flags & kStepStop) break;
      if (flags & kStepFirst) {
        ptx::mbarrier_wait(&smem.q_full, q_phase);
        q_phase ^= 1;
        state.reset();
#pragma unroll
        for (int i = 0; i < Traits::kHeadDim / 2; ++i) o[i] = 0.0f;
      }
      const uint32_t window = __shfl_sync(0xffffffff, step.window[warpgroup], 0);
      StepMessage item;
      item.row0 = step.row0;
      item.num_rows = step.num_rows;
      item.group = step.group;
      const int32_t pending_keys = __shfl_sync(0xffffffff, pending, 0);
      if (window == 0) {
        flush_pending();
        skipped_step(step, flags);
      } else if (pending_keys == kBlockN) {
        visible_step<kBlockN>(step, flags, window);
      } else if (pending_keys == kNarrow) {
        visible_step<kNarrow>(step, flags, window);
      } else {
        visible_step<0>(step, flags, window);
      }
      ring.advance();
      if (flags & kStepLast) {
        flush_pending();
        finish_rows<Traits>(params, item, state, o, tile_row);
      }
    }
  }
};

}  // namespace tangram::sm90
