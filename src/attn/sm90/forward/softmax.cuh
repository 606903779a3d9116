// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Online softmax over accumulator fragments of wgmma: a thread holds two rows, four lanes share a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx/warp.cuh"

namespace tangram::sm90 {

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

template <typename Element>
__device__ __forceinline__ uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Maximum over the four lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/// Sets scores outside [begin, end) of either row to minus infinity; columns count from this thread's first column.
template <int kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], const int32_t (&begin)[2], const int32_t (&end)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
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

/// Replaces scores by exp2(scale * (score - reference)), after moving the reference to the largest score where that
/// grew by more than `slack`: keeping an older one is exact, since numerators and sum use the same, and 2^8 does not
/// overflow. Returns whether any row of the warp moved; then what was summed before must be multiplied by `rescale`.
template <int kCount>
__device__ __forceinline__ bool exponentiate(float (&s)[kCount], RowState& state, float scale, float slack,
                                             float (&rescale)[2]) {
  bool moved = false;
  float offset[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int i = 4; i < kCount; i += 4) largest = fmaxf(largest, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
    largest = quad_max(largest);
    rescale[r] = 1.0f;
    if (largest > state.reference[r] + slack) {
      rescale[r] = ptx::exp2_approx((state.reference[r] - largest) * scale);
      state.reference[r] = largest;
      state.sum[r] *= rescale[r];
      moved = true;
    }
    offset[r] = state.reference[r] == minus_infinity() ? 0.0f : state.reference[r] * scale;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = ptx::exp2_approx(s[i] * scale - offset[(i / 2) % 2]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      sum[0] += s[i + 2 * r];
      sum[1] += s[i + 2 * r + 1];
    }
    state.sum[r] += sum[0] + sum[1];
  }
  return __any_sync(0xffffffff, moved);
}

}  // namespace tangram::sm90
