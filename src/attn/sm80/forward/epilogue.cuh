// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// End of a work tile: normalisation, sink, combination with an earlier part, and the stores of out, lse and max_logits.
#pragma once

#include "attn/sm80/forward/params.hpp"
#include "attn/sm80/forward/row_end.cuh"
#include "attn/sm80/forward/softmax.cuh"
#include "attn/sm80/forward/traits.cuh"
#include "cuda/ptx/convert.cuh"

namespace tangram::sm80 {

/// Exchanges words so that lane i of four has word i of all of them, in their order.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = threadIdx.x & static_cast<uint32_t>(step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? words[i] : words[i + step], step);
      (upper ? words[i] : words[i + step]) = other;
    }
  }
}

/// Ends the sums of one of a thread's rows: writes lse and max_logits. All lanes of the warp call it.
template <typename Traits>
__device__ __forceinline__ RowFactors finish_row(const ForwardParams& params, const RowPlace& place, bool is_part,
                                                 float reference, float part_sum, float largest) {
  const bool writes = threadIdx.x % 4 == 0 && place.valid;
  const float sum = quad_sum(part_sum);
  float lse = reference * (Traits::kSoftcap ? 1.0f : params.softmax_scale) + ptx::log2_approx(sum) * 0.693147180559945f;
  const float inverse = ptx::reciprocal_approx(sum);
  RowFactors factors{sum == 0.0f ? 0.0f : inverse, 0.0f};  // a sum of NaN is to be seen
  if (!is_part && (params.sink != nullptr || params.accumulate)) {
    if (place.valid) lse = merged_lse(params, lse, place.row, place.head, factors);
    __syncwarp();  // all lanes of the row have read what the first one overwrites
  }
  if (writes) (is_part ? params.part_lse : params.lse)[place.row * params.num_heads_q + place.head] = lse;
  if (params.max_logits != nullptr) {
    const float reached = (Traits::kSoftcap ? quad_max(largest) : reference) * params.softmax_scale;
    if (writes && reached != minus_infinity()) atomic_max(params.max_logits + place.head, reached);
  }
  return factors;
}

/// Stores one row of 16 rows' accumulators (those of `half`), multiplied by `factor`, in the element type: 16 bytes a
/// lane, 64 the four lanes of a row. All lanes of the warp call it.
template <typename Traits>
__device__ __forceinline__ void store_row(typename Traits::Element* row, const float (&o)[Traits::kDimV / 2], int half,
                                          float factor, bool valid, int32_t head_dim_v) {
  static_assert(Traits::kDimV % 32 == 0);
#pragma unroll
  for (int c = 0; c < Traits::kDimV / 8; c += 4) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = (c + j) * 4 + 2 * half;
      // A row without keys has factor 0; do not rely on 0 * x there.
      words[j] = factor == 0.0f ? 0u : ptx::pack_pair<typename Traits::Element>(o[i] * factor, o[i + 1] * factor);
    }
    transpose_quad(words);
    const int column = (c + static_cast<int>(threadIdx.x % 4)) * 8;
    if (!valid || column >= head_dim_v) continue;
    *reinterpret_cast<uint4*>(row + column) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// The same in float32; adds `previous` times what is there when that is not zero.
template <typename Traits>
__device__ __forceinline__ void store_row_f32(float* row, const float (&o)[Traits::kDimV / 2], int half,
                                              const RowFactors& factors, int32_t head_dim_v) {
#pragma unroll
  for (int c = 0; c < Traits::kDimV / 8; ++c) {
    if (c * 8 >= head_dim_v) continue;
    float2* place = reinterpret_cast<float2*>(row + c * 8 + threadIdx.x % 4 * 2);
    float2 value = factors.accumulated == 0.0f ? make_float2(0.0f, 0.0f)
                                               : make_float2(o[c * 4 + 2 * half] * factors.accumulated,
                                                             o[c * 4 + 2 * half + 1] * factors.accumulated);
    if (factors.previous != 0.0f) {
      const float2 previous = *place;
      value.x += previous.x * factors.previous;
      value.y += previous.y * factors.previous;
    }
    *place = value;
  }
}

/// A thread's two rows of 16, of which `packed_row` is the first.
template <typename Traits>
__device__ __forceinline__ void finish_rows(const ForwardParams& params, const WorkRows& work, const RowState& state,
                                            const float (&o)[Traits::kDimV / 2], int32_t packed_row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RowPlace place = row_place(params, work, packed_row + 8 * half);
    const RowFactors factors =
        finish_row<Traits>(params, place, work.is_part(), state.reference[half], state.sum[half], state.largest[half]);
    const int64_t at = place.row * params.out_row_stride + place.head * params.out_head_stride;
    if (work.is_part()) {
      if (!place.valid) continue;
      float* const row = params.part_out + (place.row * params.num_heads_q + place.head) * params.head_dim_v;
      store_row_f32<Traits>(row, o, half, factors, params.head_dim_v);
    } else if (params.out_type == OutType::kInput) {
      store_row<Traits>(static_cast<typename Traits::Element*>(params.out) + at, o, half, factors.accumulated,
                        place.valid, params.head_dim_v);
    } else if (place.valid) {
      store_row_f32<Traits>(static_cast<float*>(params.out) + at, o, half, factors, params.head_dim_v);
    }
  }
}

}  // namespace tangram::sm80
