// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Online softmax over accumulator fragments of wgmma: a thread holds two rows, four lanes share a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90 {

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

/// Maximum over the four lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/// Sets scores of the 16 columns from 16 * group on to minus infinity if they lie outside [begin, end) of their row.
/// Columns count from this thread's first column.
template <int kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], int group, const int32_t (&begin)[2],
                                            const int32_t (&end)[2]) {
#pragma unroll
  for (int i = 8 * group; i < 8 * group + 8; ++i) {
    const int32_t column = (i / 4) * 8 + i % 2;
    const int row = (i / 2) % 2;
    if (column < begin[row] || column >= end[row]) s[i] = minus_infinity();
  }
}

/// The running maximum (a reference that may lag behind the true one) and sum of exponentials of a thread's two rows.
struct RowState {
  float reference[2];
  float sum[2];
  float largest[2];  ///< true maximum of the scores before softcap; kept only with softcap

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = largest[r] = minus_infinity();
      sum[r] = 0.0f;
    }
  }
};

/// The largest of this thread's scores in each of its two rows.
template <int kCount>
__device__ __forceinline__ void largest_scores(const float (&s)[kCount], float (&largest)[2]) {
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

/// The references of rows that have none yet.
template <int kCount>
__device__ __forceinline__ void set_reference(const float (&s)[kCount], RowState& state) {
  float largest[2];
  largest_scores(s, largest);
#pragma unroll
  for (int r = 0; r < 2; ++r) state.reference[r] = quad_max(largest[r]);
}

/// Moves the references to the largest scores so far if these exceed them by more than the threshold, and scales the
/// sums. `rescale` must multiply everything else that was summed with the old references. Keeping an older reference is
/// exact, since numerators and sum use the same, and 2^8 does not overflow. So the lanes of a row need not agree on its
/// maximum while all stay below. The shuffles are left out unless some row of the warp moves (the return value).
template <int kCount>
__device__ __forceinline__ bool update_reference(const float (&s)[kCount], RowState& state, float scale,
                                                 float rescale_threshold, float (&rescale)[2]) {
  float largest[2];
  largest_scores(s, largest);
  const bool moved = __any_sync(0xffffffff, largest[0] > state.reference[0] + rescale_threshold ||
                                                largest[1] > state.reference[1] + rescale_threshold);
  if (moved) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = fmaxf(state.reference[r], quad_max(largest[r]));
      rescale[r] = reference == state.reference[r] ? 1.0f : ptx::exp2_approx((state.reference[r] - reference) * scale);
      state.reference[r] = reference;
      state.sum[r] *= rescale[r];
    }
  }
  return moved;
}

/// Offsets that exponentiate_part subtracts from the scaled scores of each row.
__device__ __forceinline__ void reference_offsets(const RowState& state, float scale, float (&offset)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) offset[r] = state.reference[r] == minus_infinity() ? 0.0f : state.reference[r] * scale;
}

/// Replaces scores [kBegin, kEnd) by exp2(scale * (score - reference)) and adds them to `sum` (two partial sums a row).
template <int kBegin, int kEnd, int kCount>
__device__ __forceinline__ void exponentiate_part(float (&s)[kCount], const float (&offset)[2], float scale,
                                                  float (&sum)[4]) {
#pragma unroll
  for (int i = kBegin; i < kEnd; i += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i + j] = ptx::exp2_approx(s[i + j] * scale - offset[j / 2]);
      sum[j] += s[i + j];
    }
  }
  // Keeps the additions here, among the exponentials, where issue slots are free.
#pragma unroll
  for (int j = 0; j < 4; ++j) ptx::make_opaque(sum[j]);
}

/// All of them; returns the sums of this thread's part of its two rows.
template <int kCount>
__device__ __forceinline__ void exponentiate(float (&s)[kCount], const RowState& state, float scale,
                                             float (&row_sum)[2]) {
  float offset[2];
  reference_offsets(state, scale, offset);
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  exponentiate_part<0, kCount>(s, offset, scale, sum);
#pragma unroll
  for (int r = 0; r < 2; ++r) row_sum[r] = sum[2 * r] + sum[2 * r + 1];
}

}  // namespace tangram::sm90
