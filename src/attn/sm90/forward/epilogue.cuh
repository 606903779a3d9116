// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// End of an item: normalisation, sink, merge with an earlier part, and the stores of out, lse and max_logits.
#pragma once

#include "attn/sm90/forward/softmax.cuh"
#include "attn/sm90/forward/traits.cuh"

namespace tangram::sm90 {

/// What the end of an item needs to know about it.
struct ItemRows {
  int32_t row0, num_rows, group;
};

/// log(exp(a) + exp(b)); either may be minus infinity.
__device__ __forceinline__ float log_add_exp(float a, float b) {
  const float high = fmaxf(a, b);
  if (high == minus_infinity()) return high;
  return high + logf(expf(a - high) + expf(b - high));
}

/// logsumexp of the sinks of (row, head).
__device__ __forceinline__ float sink_lse(const ForwardParams& params, int64_t row, int32_t head) {
  const float* sink = params.sink + (params.sink_per_row ? row * params.num_sinks * params.num_heads_q : 0) + head;
  float total = minus_infinity();
  for (int32_t i = 0; i < params.num_sinks; ++i) total = log_add_exp(total, sink[int64_t{i} * params.num_heads_q]);
  return total;
}

/// Stores one row of accumulators (those of `half`), multiplied by `factor`, in the element type. Neighbouring lanes
/// swap words, so that each store of a quad fills a 32-byte sector.
template <typename Traits>
__device__ __forceinline__ void store_row(typename Traits::Element* row, const float (&o)[Traits::kHeadDim / 2],
                                          int half, float factor, bool valid) {
  const bool odd = threadIdx.x % 2 != 0;
  row += (odd ? 8 : 0) + (threadIdx.x % 4 / 2) * 4;
#pragma unroll
  for (int c = 0; c < Traits::kHeadDim / 16; ++c) {
    uint32_t words[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int i = (c * 2 + b) * 4 + 2 * half;
      // A row without keys has factor 0; do not rely on 0 * x there.
      words[b] = factor == 0.0f ? 0u : pack_pair<typename Traits::Element>(o[i] * factor, o[i + 1] * factor);
    }
    const uint32_t received = __shfl_xor_sync(0xffffffff, odd ? words[0] : words[1], 1);
    const uint2 value = odd ? make_uint2(received, words[1]) : make_uint2(words[0], received);
    if (valid) *reinterpret_cast<uint2*>(row + c * 16) = value;
  }
}

/// As store_row, in float32; adds `previous_factor` times what is there when that is not zero.
template <typename Traits>
__device__ __forceinline__ void store_row_f32(float* row, const float (&o)[Traits::kHeadDim / 2], int half,
                                              float factor, float previous_factor) {
#pragma unroll
  for (int c = 0; c < Traits::kHeadDim / 8; ++c) {
    float2* place = reinterpret_cast<float2*>(row + c * 8 + (threadIdx.x % 4) * 2);
    float2 value = factor == 0.0f ? make_float2(0.0f, 0.0f)
                                  : make_float2(o[c * 4 + 2 * half] * factor, o[c * 4 + 2 * half + 1] * factor);
    if (previous_factor != 0.0f) {
      const float2 previous = *place;
      value.x += previous.x * previous_factor;
      value.y += previous.y * previous_factor;
    }
    *place = value;
  }
}

__device__ __forceinline__ void atomic_max(float* place, float value) {
  // Floats order like signed integers when not negative, and inversely as unsigned ones otherwise.
  if (value >= 0.0f) {
    atomicMax(reinterpret_cast<int*>(place), __float_as_int(value));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(place), __float_as_uint(value));
  }
}

/// Finishes the thread's two rows of an item; `tile_row` is the first of them, the second is eight further.
template <typename Traits>
__device__ __forceinline__ void finish_rows(const ForwardParams& params, const ItemRows& item, RowState& state,
                                            const float (&o)[Traits::kHeadDim / 2], int tile_row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int packed_row = tile_row + 8 * half;
    const int local_row = packed_row >> params.pack_log2;
    const int32_t head = (item.group << params.pack_log2) + (packed_row & ((1 << params.pack_log2) - 1));
    const int64_t row = int64_t{item.row0} + local_row;
    const bool valid = local_row < item.num_rows;
    const float sum = quad_sum(state.sum[half]);
    const float reference = state.reference[half] * (Traits::kSoftcap ? 1.0f : params.softmax_scale);
    float lse = sum > 0.0f ? reference + __logf(sum) : minus_infinity();
    float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    float previous_factor = 0.0f;
    if (valid && (params.sink != nullptr || params.accumulate)) {
      float total = lse;
      float previous = minus_infinity();
      if (params.accumulate) total = log_add_exp(total, previous = params.lse[row * params.lse_row_stride + head]);
      if (params.sink != nullptr) total = log_add_exp(total, sink_lse(params, row, head));
      if (total != minus_infinity()) {
        factor *= __expf(lse - total);
        previous_factor = __expf(previous - total);
      }
      lse = total;
    }
    __syncwarp();
    const float true_maximum = Traits::kSoftcap ? quad_max(state.largest[half]) : 0.0f;
    if (valid && threadIdx.x % 4 == 0) {
      params.lse[row * params.lse_row_stride + head] = lse;
      if (params.max_logits != nullptr) {
        const float largest = (Traits::kSoftcap ? true_maximum : state.reference[half]) * params.softmax_scale;
        if (largest != minus_infinity()) atomic_max(params.max_logits + head, largest);
      }
    }
    const int64_t offset = row * params.out_row_stride + head * params.out_head_stride;
    if (params.out_type == OutType::kInput) {
      store_row<Traits>(static_cast<typename Traits::Element*>(params.out) + offset, o, half, factor, valid);
    } else if (valid) {
      store_row_f32<Traits>(static_cast<float*>(params.out) + offset, o, half, factor, previous_factor);
    }
  }
}

}  // namespace tangram::sm90
