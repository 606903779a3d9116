// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rows of tensors of any dtype as kernels walk them, eight elements at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "tangram/tensor.hpp"

namespace tangram::device {

/// DType as a word, which kernels load at once.
enum class Element : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

/// Strides are in elements.
struct Rows {
  const void* data;
  int64_t row_stride;
  int64_t head_stride;
  Element element;

  __device__ __forceinline__ int64_t at(int64_t row, int64_t head) const {
    return row * row_stride + head * head_stride;
  }
};

inline Rows rows_of(const ConstTensorView& view) {
  return {view.data, view.row_stride, view.head_stride, static_cast<Element>(view.dtype)};
}

template <typename Pair, typename Unpack>
__device__ __forceinline__ void unpack_eight(float (&x)[8], const uint4& words, Unpack unpack) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Pair pair;
    memcpy(&pair, &word[i], 4);
    const float2 value = unpack(pair);
    x[2 * i] = value.x;
    x[2 * i + 1] = value.y;
  }
}

__device__ __forceinline__ void load_eight(float (&x)[8], const Rows& rows, int64_t at) {
  if (rows.element == Element::kFloat32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) + at);
    const float4 low = from[0], high = from[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.data) + at);
  if (rows.element == Element::kBFloat16) {
    unpack_eight<__nv_bfloat162>(x, words, [](const __nv_bfloat162& p) { return __bfloat1622float2(p); });
  } else {
    unpack_eight<__half2>(x, words, [](const __half2& p) { return __half22float2(p); });
  }
}

__device__ __forceinline__ void store_eight(const float (&x)[8], const Rows& rows, int64_t at) {
  void* data = const_cast<void*>(rows.data);
  if (rows.element == Element::kFloat32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(data) + at);
    to[0] = {x[0], x[1], x[2], x[3]};
    to[1] = {x[4], x[5], x[6], x[7]};
    return;
  }
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (rows.element == Element::kBFloat16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      memcpy(&word[i], &pair, 4);
    } else {
      const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
      memcpy(&word[i], &pair, 4);
    }
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + at) = {word[0], word[1], word[2], word[3]};
}

}  // namespace tangram::device
