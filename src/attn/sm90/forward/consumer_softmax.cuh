// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Masks and online softmax of a consumer warpgroup of the forward kernel: which scores its rows see, references instead
// of maxima, and lazy rescaling. See docs/design/forward_sm90.md, "Softmax without maxima".
#pragma once

#include "attn/sm90/forward/consumer_base.cuh"
#include "attn/sm90/forward/packing.cuh"

namespace tangram::sm90 {

template <typename Traits>
struct ConsumerSoftmax : ConsumerBase<Traits> {
  using Base = ConsumerBase<Traits>;
  using Base::kBlockN;
  using Base::lane;
  using Base::o;
  using Base::params;
  using Base::rings;
  using Base::smem;
  using Base::state;
  using Base::warpgroup;
  static constexpr float kLimit = 16384.0f;  // sums of a thread's probabilities below this are finite in float16 too

  __device__ ConsumerSoftmax(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in) : Base(params_in, smem_in) {}

  /// Finds the keys that this warp's rows see of a run.
  __device__ __forceinline__ void load_intervals(const StepMessage& step) {
    const WorkTileRows<Traits::kSplitKv> work_tile = smem.work_tiles[rings.work_tile()];
    [[maybe_unused]] constexpr int kAtOnce = Traits::kAnyGqaRatio ? 1 : 2;  // which takes fewer registers
#pragma unroll kAtOnce
    for (int r = 0; r < 2; ++r) {
      const int32_t local_row = query_row_of<Traits>(params, this->tile_row() + 8 * r);
      const int32_t row = work_tile.row0 + local_row;
      RowInterval interval;
      if (step.interval_begin >= 0) {
        if (local_row < work_tile.num_rows) {
          interval = params.intervals[step.interval_begin + local_row];
        }
      } else if (row >= step.row_begin && row < step.row_end) {
        interval.begin = interval_begin_of(step, row);
        interval.end = interval_end_of(step, row);
      }
      if (lane % 4 == 0) smem.intervals[this->tile_row() + 8 * r] = interval;
    }
  }

  /// Reads what only some steps need from the message; returns how many rows of the step's V are valid.
  __device__ __forceinline__ int32_t read_message(uint32_t word) {
    const StepMessage& step = smem.step[rings.k_stage()];
    if (word & kStepNewRun) {
      load_intervals(step);
      __syncwarp();
    }
    return word & kStepTail ? __shfl_sync(0xffffffff, step.v_valid, 0) : kBlockN;
  }

  /// Masks the groups of 16 keys that the word names, of keys from row 16 * begin16 of `stage` on.
  template <int kN>
  __device__ __forceinline__ void mask_window(float (&s)[kN / 2], uint32_t word, int begin16, int stage) {
    const uint32_t masked = word >> (kStepMaskShift + begin16);
    if (masked == 0) return;
    const int32_t first_key = smem.step[stage].first_key;
    const int32_t shift = smem.step[stage].k0 + begin16 * 16 + 2 * (lane % 4);
    const RowInterval first = smem.intervals[this->tile_row()], second = smem.intervals[this->tile_row() + 8];
    const int32_t begin[2] = {max(first.begin, first_key) - shift, max(second.begin, first_key) - shift};
    const int32_t end[2] = {first.end - shift, second.end - shift};
#pragma unroll
    for (int g = 0; g < kN / 16; ++g) {
      if (masked >> g & 1) mask_scores(s, g, begin, end);
    }
  }

  /// Replaces scores by softcap * tanh(scale * score / softcap), masked ones by -softcap, and keeps the largest before.
  template <int kCount>
  __device__ __forceinline__ void apply_softcap(float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) state.largest[(i / 2) % 2] = fmaxf(state.largest[(i / 2) % 2], s[i]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = params.softcap * ptx::tanh_approx(s[i] * params.inner_scale);
  }

  __device__ __forceinline__ void rescale_output(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < Traits::kDimV / 2; ++i) o[i] *= rescale[(i / 2) % 2];
  }

  /// Online softmax of the scores of kN keys from row 16 * begin16 of the tile on. Returns true if o must be multiplied
  /// by `rescale`. With kFresh these are the work tile's first scores.
  template <int kN, bool kFresh>
  __device__ __forceinline__ bool apply_softmax(float (&s)[kN / 2], uint32_t word, int begin16, float (&rescale)[2]) {
    mask_window<kN>(s, word, begin16, rings.k_stage());
    if constexpr (Traits::kSoftcap) {
      apply_softcap(s);
      mask_window<kN>(s, word, begin16, rings.k_stage());
    }
    bool moved = false;
    if constexpr (kFresh) {
      set_reference(s, state);
    } else {
      moved = update_reference(s, state, params.exp_scale, params.rescale_threshold, rescale);
    }
    float row_sum[2];
    exponentiate(s, state, params.exp_scale, row_sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    return moved;
  }

  /// Whether some thread of the warpgroup saw a score that exceeds its reference by so much that the step must be
  /// repeated with care.
  __device__ __forceinline__ bool must_redo(const float (&row_sum)[2]) {
    return ptx::named_barrier_any(Base::kRedoBarrier + warpgroup, 128, !(row_sum[0] < kLimit && row_sum[1] < kLimit));
  }

  /// Makes the scores of kN keys in `stage` again, moves the references and exponentiates. Nothing may be in flight.
  template <int kN>
  __device__ __forceinline__ void redo_softmax(float (&s)[kN / 2], uint32_t word, int begin16, int stage,
                                               float (&row_sum)[2]) {
    this->template issue_scores<kN>(s, begin16, stage);
    ptx::wgmma_wait<0>();
    mask_window<kN>(s, word, begin16, stage);
    float rescale[2];
    if (update_reference(s, state, params.exp_scale, params.rescale_threshold, rescale)) rescale_output(rescale);
    exponentiate(s, state, params.exp_scale, row_sum);
  }
};

}  // namespace tangram::sm90
