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
  static constexpr uint32_t kRedoBarrier = 5;  // named barriers 5, 6: one warpgroup agrees on making scores again
  static constexpr uint32_t kZeroBarrier = 3;  // named barriers 3, 4: one warpgroup has zeroed rows of V

  const ForwardParams& params;
  ForwardSmem<Traits>& smem;
  const int warpgroup;  // 0 or 1
  const int lane;
  const int tile_row;                     // of this thread's first row, in packed rows
  RingPosition<Traits::kStagesK> ring;    // of the step at hand
  RingPosition<Traits::kStagesV> v_ring;  // of the next V to be multiplied: the pending step's
  RingPosition<Traits::kStagesQ> q_ring;  // of the item whose scores come next
  bool item_open = false;                 // rows of an item wait for finish_item()

  float o[Traits::kHeadDim / 2];
  uint32_t p[kGroups16][4];
  RowState state;
  int32_t pending = 0;  // keys of the step whose product with V is still to be made: 0, kNarrow or kBlockN
  int32_t interval_begin[2], interval_end[2];
  // The step whose probabilities wait in p for their product with V.
  int32_t v_begin16, v_valid, v_valid_next;
  // From the message of the current step, where it needs them.
  int32_t k0 = 0, item_row0, item_rows, item_group;

  __device__ Consumer(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in)
      : params(params_in),
        smem(smem_in),
        warpgroup(__shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1),
        lane(static_cast<int>(threadIdx.x) % 32),
        tile_row(warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4) {}

  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void release_v() {
    arrive(&smem.v_empty[v_ring.stage]);
    v_ring.advance();
  }
  __device__ __forceinline__ void take_turn() { ptx::named_barrier_sync(kTurnBarrier + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() { ptx::named_barrier_arrive(kTurnBarrier + (warpgroup ^ 1), 256); }

  /// Starts S = Q K^T for kN keys of `stage`, from row 16 * begin16 on.
  template <int kN>
  __device__ __forceinline__ void issue_scores(float (&scores)[kN / 2], int begin16, int stage) {
    const uint64_t q = ptx::wgmma_descriptor(ptx::smem_address(smem.q[q_ring.stage]) + warpgroup * 64 * 128, 16, 1024);
    const uint64_t k = ptx::wgmma_descriptor(ptx::smem_address(smem.k[stage]) + begin16 * 2048, 16, 1024);
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
        ptx::wgmma_descriptor(ptx::smem_address(smem.v[v_ring.stage]) + v_begin16 * 2048, Traits::kPanelBytesK, 1024);
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
        *reinterpret_cast<uint4*>(smem.v[v_ring.stage] + panel * Traits::kPanelBytesK + i * 16) =
            make_uint4(0, 0, 0, 0);
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
    if (masked) mask_window(s, first_key);
    if constexpr (Traits::kSoftcap) {
      apply_softcap(s);
      if (masked) mask_window(s, first_key);
    }
    const bool moved = update_reference(s, state, params.exp_scale, params.slack, rescale);
    float row_sum[2];
    exponentiate(s, state, params.exp_scale, row_sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    return moved;
  }

  template <int kCount>
  __device__ __forceinline__ void mask_window(float (&s)[kCount], int32_t first_key) {
    const int32_t shift = first_key + 2 * (lane % 4);
    const int32_t begin[2] = {interval_begin[0] - shift, interval_begin[1] - shift};
    const int32_t end[2] = {interval_end[0] - shift, interval_end[1] - shift};
    mask_scores(s, begin, end);
  }

  /// Replaces scores by softcap * tanh(scale * score / softcap), masked ones by -softcap, and keeps the largest before.
  template <int kCount>
  __device__ __forceinline__ void apply_softcap(float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) state.largest[(i / 2) % 2] = fmaxf(state.largest[(i / 2) % 2], s[i]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = params.softcap * ptx::tanh_approx(s[i] * params.inner_scale);
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
    ptx::mbarrier_wait(&smem.v_full[v_ring.stage], v_ring.phase);
    clear_unseen_v<kN>();
  }

  template <int kN>
  __device__ __forceinline__ void flush_pending() {
    wait_pending_v<kN>();
    issue_output<kN>();
    ptx::wgmma_wait<0>();
    release_v();
  }

  __device__ __forceinline__ void flush_pending() {
    const int32_t width = __shfl_sync(0xffffffff, pending, 0);
    if (width == kBlockN) flush_pending<kBlockN>();
    if (width == kNarrow) flush_pending<kNarrow>();
    pending = 0;
  }

  /// Waits for the step at the ring's position and returns its word for this warpgroup. The shuffle tells the compiler
  /// that the word, and so each branch on it, is the same in the whole warp.
  __device__ __forceinline__ uint32_t fetch_word() {
    ptx::mbarrier_wait(&smem.k_full[ring.stage], ring.phase);
    return __shfl_sync(0xffffffff, smem.step[ring.stage].word[warpgroup], 0);
  }

  /// What only some steps need from the message, read before the stage is released.
  __device__ __forceinline__ void read_message(uint32_t word) {
    const StepMessage& step = smem.step[ring.stage];
    if (word & kStepNewRun) load_intervals(step);
    k0 = step.k0;
    if (word & kStepTail) v_valid_next = __shfl_sync(0xffffffff, step.v_valid, 0);
    if (word & kStepLast) {
      item_row0 = step.row0;
      item_rows = step.num_rows;
      item_group = step.group;
      arrive(&smem.q_empty[q_ring.stage]);
      q_ring.advance();
    }
    __syncwarp();
  }

  /// One step of which this warpgroup sees at most kN keys; returns the next step's word, unless this is an item's
  /// last. The product with V of the pending step of kPendingN keys (0: none) runs under this one's softmax.
  /// With kNewItem, the pending step is the last one of the item before, which is finished on the way.
  template <int kPendingN, int kN, bool kNewItem = false>
  __device__ __forceinline__ uint32_t visible_step(uint32_t word) {
    constexpr bool kUnderSoftmax = kPendingN > 0 && !kNewItem;
    const int begin16 = min(window_begin16(word), kGroups16 - kN / 16);
    float s[kN / 2];
    take_turn();
    issue_scores<kN>(s, begin16, ring.stage);
    if constexpr (kPendingN > 0) {
      wait_pending_v<kPendingN>();
      issue_output<kPendingN>();
    }
    pass_turn();
    ptx::wgmma_wait<kPendingN == 0 || kNewItem ? 0 : 1>();
    if constexpr (kNewItem) {
      release_v();
      finish_item();
    }
    v_valid_next = kBlockN;
    if (word & ~0xffffu) read_message(word);
    arrive(&smem.k_empty[ring.stage]);
    float rescale[2];
    const bool moved = apply_softmax<kN>(s, kN < kBlockN || (word & kStepMasked), k0 + begin16 * 16, rescale);
    ring.advance();
    const uint32_t next = fetch_word();
    // The wait stands in both branches because ptxas moves one that it finds in the block of the exponentials above
    // them, and the product with V would no longer run under the softmax.
    if (moved) {
      if constexpr (kUnderSoftmax) ptx::wgmma_wait<0>();
      rescale_output(rescale);
    } else {
      if constexpr (kUnderSoftmax) ptx::wgmma_wait<0>();
    }
    if constexpr (kUnderSoftmax) release_v();
    convert_probabilities<kN>(s);
    v_begin16 = begin16;
    v_valid = v_valid_next;
    pending = kN;
    return next;
  }

  /// The step that most of the time goes into: a whole unmasked tile, in which every row has a reference already. It is
  /// taken without looking for maxima: should a score exceed its reference by much, the sum of the exponentials shows
  /// it (infinity included), and the scores are made again and treated with care. For that K is kept until then.
  __device__ __forceinline__ uint32_t plain_step() {
    constexpr float kLimit = 16384.0f;  // a probability below this is finite in float16 too
    float s[kBlockN / 2];
    take_turn();
    issue_scores<kBlockN>(s, 0, ring.stage);
    wait_pending_v<kBlockN>();
    issue_output<kBlockN>();
    pass_turn();
    ptx::wgmma_wait<1>();
    float row_sum[2];
    exponentiate(s, state, params.exp_scale, row_sum);
    const RingPosition<Traits::kStagesK> here = ring;
    ring.advance();
    const uint32_t next = fetch_word();
    if (ptx::named_barrier_any(kRedoBarrier + warpgroup, 128, !(row_sum[0] < kLimit && row_sum[1] < kLimit))) {
      ptx::wgmma_wait<0>();
      issue_scores<kBlockN>(s, 0, here.stage);
      ptx::wgmma_wait<0>();
      arrive(&smem.k_empty[here.stage]);
      float rescale[2];
      if (update_reference(s, state, params.exp_scale, params.slack, rescale)) rescale_output(rescale);
      exponentiate(s, state, params.exp_scale, row_sum);
    } else {
      arrive(&smem.k_empty[here.stage]);
      ptx::wgmma_wait<0>();
    }
    release_v();
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    convert_probabilities<kBlockN>(s);
    v_begin16 = 0;
    v_valid = kBlockN;
    pending = kBlockN;
    return next;
  }

  /// A step of which this warpgroup sees nothing.
  __device__ __forceinline__ uint32_t skipped_step(uint32_t word) {
    take_turn();
    pass_turn();
    read_message(word);
    arrive(&smem.k_empty[ring.stage]);
    ptx::mbarrier_wait(&smem.v_full[v_ring.stage], v_ring.phase);
    release_v();
    ring.advance();
    return fetch_word();
  }

  static __device__ __forceinline__ bool is_wide(uint32_t word) { return window_count16(word) * 16 > kNarrow; }

  template <int kPendingN>
  __device__ __forceinline__ uint32_t visible_step_of_width(uint32_t word) {
    return is_wide(word) ? visible_step<kPendingN, kBlockN>(word) : visible_step<kPendingN, kNarrow>(word);
  }

  /// Stores the rows of the item whose last product is done, and clears the accumulators.
  __device__ __forceinline__ void finish_item() {
    if (item_open) finish_rows<Traits>(params, {item_row0, item_rows, item_group}, state, o, tile_row);
    item_open = true;
    state.reset();
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 2; ++i) o[i] = 0.0f;
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) pass_turn();
    constexpr uint32_t kPlainWord = kGroups16 << 8;  // the whole tile, no flags
    bool settled = false;
    uint32_t word = fetch_word();
    while (!(word & kStepStop)) {
      const int32_t pending_keys = __shfl_sync(0xffffffff, pending, 0);
      uint32_t next;
      if (word & kStepFirst) {
        ptx::mbarrier_wait(&smem.q_full[q_ring.stage], q_ring.phase);
        if (is_wide(word) && pending_keys == kBlockN) {
          next = visible_step<kBlockN, kBlockN, true>(word);
        } else {
          flush_pending();
          finish_item();
          next = window_count16(word) == 0 ? skipped_step(word) : visible_step_of_width<0>(word);
        }
      } else if (window_count16(word) == 0) {
        flush_pending();
        next = skipped_step(word);
      } else if (pending_keys == 0) {
        next = visible_step_of_width<0>(word);
      } else if (pending_keys == kNarrow) {
        next = visible_step_of_width<kNarrow>(word);
      } else if (!is_wide(word)) {
        next = visible_step<kBlockN, kNarrow>(word);
      } else {
        next = visible_step<kBlockN, kBlockN>(word);
      }
      // An unmasked tile has given every row a reference.
      settled = (settled && !(word & kStepFirst)) || !(word & kStepMasked);
      if constexpr (!Traits::kSoftcap) {
        if (settled && params.slack > 0.0f && is_wide(word)) {
          while (next == kPlainWord) next = plain_step();
        }
      }
      word = next;
    }
    flush_pending();
    finish_item();
  }
};

}  // namespace tangram::sm90
