// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What ends a row of any forward kernel: where it goes, and what sinks and an earlier part make of its lse.
#pragma once

#include "attn/sm80/common/work_order.cuh"
#include "attn/sm80/forward/params.hpp"

namespace tangram::sm80 {

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

/// log(exp(a) + exp(b)); either may be minus infinity. NaN if either is.
__device__ __forceinline__ float log_add_exp(float a, float b) {
  const float high = fmaxf(a, b);  // which leaves NaN out
  if (high == minus_infinity()) return a + b;
  return high + logf(expf(a - high) + expf(b - high));
}

/// logsumexp of the sinks of (row, head).
__device__ __forceinline__ float sink_lse(const ForwardParams& params, int64_t row, int32_t head) {
  const float* sink = params.sink + (params.sink_per_row ? row * params.num_sinks * params.num_heads_q : 0) + head;
  float total = minus_infinity();
#pragma unroll 1
  for (int32_t i = 0; i < params.num_sinks; ++i) total = log_add_exp(total, sink[int64_t{i} * params.num_heads_q]);
  return total;
}

/// What a row's accumulators, and what is in out already, must be multiplied by.
struct RowFactors {
  float accumulated, previous;
};

/// What merging with sinks and an earlier part makes of a row's lse, and of the factors.
__device__ __forceinline__ float merged_lse(const ForwardParams& params, float lse, int64_t row, int32_t head,
                                            RowFactors& factors) {
  float total = lse, previous = minus_infinity();
  if (params.accumulate) total = log_add_exp(total, previous = params.lse[row * params.num_heads_q + head]);
  if (params.sink != nullptr) total = log_add_exp(total, sink_lse(params, row, head));
  if (total != minus_infinity()) {
    factors.accumulated *= __expf(lse - total);
    factors.previous = __expf(previous - total);
  }
  return total;
}

__device__ __forceinline__ void atomic_max(float* place, float value) {
  // Floats order like signed integers when not negative, and inversely as unsigned ones otherwise.
  if (value >= 0.0f) {
    atomicMax(reinterpret_cast<int*>(place), __float_as_int(value));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(place), __float_as_uint(value));
  }
}

/// Where a row belongs.
struct RowPlace {
  int64_t row;
  int32_t head;
  bool valid;
};

/// `packed_row` counts from the work tile's first.
__device__ __forceinline__ RowPlace row_place(const ForwardParams& params, const WorkRows& work, int32_t packed_row) {
  const int32_t in_tile = packed_row >> params.pack_log2;
  return {int64_t{work.is_part() ? work.part_row : work.row0} + in_tile,
          (work.group << params.pack_log2) + (packed_row & ((1 << params.pack_log2) - 1)), in_tile < work.num_rows};
}

}  // namespace tangram::sm80
