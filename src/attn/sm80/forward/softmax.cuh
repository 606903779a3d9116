// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Online softmax over sums of mma. A thread holds two of 16 rows (lane / 4, and 8 further). The four lanes of a row, a
// quad, hold two neighbouring columns each of every 8. Sum 4 j + 2 r + e is column 8 j + 2 (lane % 4) + e of row r.
// References in the place of maxima lag behind them by up to a threshold (lazy rescaling).
#pragma once

#include <cstdint>

#include "attn/sm80/forward/row_end.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm80 {

/// Over the four lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/// Softmax state of a thread's two rows.
struct RowState {
  float reference[2];
  float sum[2];      ///< of this thread's exponentials
  float largest[2];  ///< true maximum of the scores before softcap; kept only with softcap

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = largest[r] = minus_infinity();
      sum[r] = 0.0f;
    }
  }
};

/// Sets scores outside of [begin, end) of either row to minus infinity; columns count from this thread's first.
template <int kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], const int32_t (&begin)[2], const int32_t (&end)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int32_t column = i / 4 * 8 + i % 2;
    const int row = i / 2 % 2;
    if (column < begin[row] || column >= end[row]) s[i] = minus_infinity();
  }
}

/// The largest of a thread's scores of its two rows, in two chains each.
template <int kCount>
__device__ __forceinline__ void find_largest(const float (&s)[kCount], float (&largest)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float even = fmaxf(s[2 * r], s[2 * r + 1]), odd = fmaxf(s[2 * r + 4], s[2 * r + 5]);
#pragma unroll
    for (int i = 8; i < kCount; i += 8) {
      even = fmaxf(even, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
      odd = fmaxf(odd, fmaxf(s[i + 4 + 2 * r], s[i + 5 + 2 * r]));
    }
    largest[r] = fmaxf(even, odd);
  }
}

/// Moves the references to the largest scores so far if one of a warp exceeds its own by more than `threshold`, and
/// scales the sums. `rescale` must multiply everything else that was summed with the old references. Keeping an older
/// reference is exact, since numerators and sum use the same. Returns whether some row of the warp has moved. One vote
/// for all rows: what follows is then one block for the compiler to order.
template <int kM, int kCount>
__device__ __forceinline__ bool update_references(const float (&s)[kM][kCount], RowState (&state)[kM], float scale,
                                                  float threshold, float (&rescale)[kM][2]) {
  float largest[kM][2];
  bool exceeds = false;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    find_largest(s[m], largest[m]);
#pragma unroll
    for (int r = 0; r < 2; ++r) exceeds = exceeds || largest[m][r] > state[m].reference[r] + threshold;
  }
  if (!__any_sync(0xffffffff, exceeds)) return false;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float old = state[m].reference[r], reference = fmaxf(old, quad_max(largest[m][r]));
      rescale[m][r] = reference == old ? 1.0f : ptx::exp2_approx((old - reference) * scale);
      state[m].reference[r] = reference;
      state[m].sum[r] *= rescale[m][r];
    }
  }
  return true;
}

/// Replaces scores by exp2(scale * (score - reference)) and adds them to the sums.
template <int kCount>
__device__ __forceinline__ void exponentiate(float (&s)[kCount], RowState& state, float scale) {
  float offset[2], sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int r = 0; r < 2; ++r) offset[r] = state.reference[r] == minus_infinity() ? 0.0f : state.reference[r] * scale;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    s[i] = ptx::exp2_approx(s[i] * scale - offset[i / 2 % 2]);
    sum[i % 4] += s[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) state.sum[r] += sum[2 * r] + sum[2 * r + 1];
}

}  // namespace tangram::sm80
