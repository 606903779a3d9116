// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// End of a work tile: normalisation, sink, combination with an earlier part, and the stores of out, lse and max_logits.
#pragma once

#include "attn/sm90/common/fragments.cuh"
#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/common/warpgroup.cuh"
#include "attn/sm90/forward/messages.cuh"
#include "attn/sm90/forward/packing.cuh"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/forward/softmax.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90 {

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

/// Writes the warpgroup's rows of accumulators, multiplied by the factor of their row, to shared memory in the element
/// type. Panels of 128-byte rows with 128-byte swizzle are kPanelBytesQ apart.
template <typename Traits>
__device__ __forceinline__ void stage_rows(unsigned char* staging, const float (&o)[Traits::kDimV / 2],
                                           const float (&factor)[2]) {
  using Element = typename Traits::Element;
  const int lane = threadIdx.x % 32;
  // Each lane gives the address of one row of four 8 x 8 matrices: rows 0 and 8, then the next eight columns.
  const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
  unsigned char* place = staging + row * kPanelRowBytes;
#pragma unroll
  for (int c = 0; c < Traits::kDimV / 16; ++c) {
    uint32_t words[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int i = c * 8 + b * 2;
      // A row without keys has factor 0; do not rely on 0 * x there.
      const float f = factor[b % 2];
      words[b] = f == 0.0f ? 0u : pack_pair<Element>(o[i] * f, o[i + 1] * f);
    }
    const int chunk = (c % 4 * 2 + lane / 16) ^ (row % 8);
    ptx::store_matrix_x4(place + c / 4 * Traits::kPanelBytesQ + chunk * 16, words[0], words[1], words[2], words[3]);
  }
}

/// Exchanges words so that lane i of four has word i of all of them, in their order.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? words[i] : words[i + step], step);
      (upper ? words[i] : words[i + step]) = other;
    }
  }
}

/// Stores one row of accumulators (those of `half`), multiplied by `factor`, in the element type, if it is `valid`. A
/// lane stores 16 bytes, the four lanes of a row 64.
template <typename Traits>
__device__ __forceinline__ void store_row(typename Traits::Element* row, const float (&o)[Traits::kDimV / 2], int half,
                                          float factor, bool valid, int32_t head_dim_v) {
#pragma unroll
  for (int c = 0; c < Traits::kDimV / 8; c += 4) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = (c + j) * 4 + 2 * half;
      words[j] = factor == 0.0f ? 0u : pack_pair<typename Traits::Element>(o[i] * factor, o[i + 1] * factor);
    }
    transpose_quad(words);
    const int column = (c + static_cast<int>(threadIdx.x % 4)) * 8;
    if (!valid || column >= head_dim_v) continue;
    *reinterpret_cast<uint4*>(row + column) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// Stores one row of accumulators (those of `half`), multiplied by `factor`, in float32; adds `previous_factor` times
/// what is there when that is not zero.
template <typename Traits>
__device__ __forceinline__ void store_row_f32(float* row, const float (&o)[Traits::kDimV / 2], int half, float factor,
                                              float previous_factor, int32_t head_dim_v) {
#pragma unroll
  for (int c = 0; c < Traits::kDimV / 8; ++c) {
    if (Traits::kAnyDim && c * 8 >= head_dim_v) continue;
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

/// Combines a row's lse with sinks and an earlier part. Multiplies the factor of its accumulators and returns the
/// factor of the stored out.
__device__ __forceinline__ float merged_lse(const ForwardParams& params, float lse, int64_t row, int32_t head,
                                            float& factor, float& previous_factor) {
  float total = lse;
  float previous = minus_infinity();
  if (params.accumulate) total = log_add_exp(total, previous = params.lse[row * params.lse_row_stride + head]);
  if (params.sink != nullptr) total = log_add_exp(total, sink_lse(params, row, head));
  if (total != minus_infinity()) {
    factor *= __expf(lse - total);
    previous_factor = __expf(previous - total);
  }
  return total;
}

/// Where one of a thread's two rows belongs.
struct RowPlace {
  int64_t row;
  int32_t head;
  bool valid;
};

/// Whether the work tile's rows go to the workspace.
template <typename Traits>
__device__ __forceinline__ bool is_part(const WorkTileRows<Traits::kSplitKv>& work_tile) {
  if constexpr (Traits::kSplitKv) return work_tile.part_row >= 0;
  return false;
}

/// `packed_row` counts from the work tile's first.
template <typename Traits>
__device__ __forceinline__ RowPlace row_place(const ForwardParams& params,
                                              const WorkTileRows<Traits::kSplitKv>& work_tile, int packed_row) {
  const int local_row = query_row_of<Traits>(params, packed_row);
  int32_t first_row = work_tile.row0;
  if constexpr (Traits::kSplitKv) first_row = is_part<Traits>(work_tile) ? work_tile.part_row : work_tile.row0;
  return {int64_t{first_row} + local_row,
          first_head_of<Traits>(params, work_tile.group) + head_in_group<Traits>(params, packed_row, local_row),
          local_row < work_tile.num_rows};
}

/// Factors of a thread's two rows of accumulators, and of the stored out.
struct RowFactors {
  float accumulated[2];
  float previous[2];
};

/// Ends the sums of a thread's two rows, of which `packed_row` is the first: writes lse and max_logits. Needs no
/// accumulators, so that their last product may still be in flight.
template <typename Traits>
__device__ __forceinline__ RowFactors finish_sums(const ForwardParams& params,
                                                  const WorkTileRows<Traits::kSplitKv>& work_tile,
                                                  const RowState& state, int packed_row) {
  RowFactors factors;
  float lse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(state.sum[half]);
    const float reference = state.reference[half] * (Traits::kSoftcap ? 1.0f : params.softmax_scale);
    lse[half] = reference + ptx::log2_approx(sum) * 0.693147180559945f;  // -inf without keys
    const float inverse = ptx::reciprocal_approx(sum);
    factors.accumulated[half] = sum == 0.0f ? 0.0f : inverse;  // a sum of NaN is to be seen
    factors.previous[half] = 0.0f;
  }
  if (!is_part<Traits>(work_tile) && (params.sink != nullptr || params.accumulate)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowPlace place = row_place<Traits>(params, work_tile, packed_row + 8 * half);
      if (!place.valid) continue;
      lse[half] =
          merged_lse(params, lse[half], place.row, place.head, factors.accumulated[half], factors.previous[half]);
    }
    __syncwarp();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RowPlace place = row_place<Traits>(params, work_tile, packed_row + 8 * half);
    float* to = params.lse;
    if constexpr (Traits::kSplitKv) to = is_part<Traits>(work_tile) ? params.part_lse : params.lse;
    if (threadIdx.x % 4 == 0 && place.valid) to[place.row * params.lse_row_stride + place.head] = lse[half];
    // Values staged over unused rows of Q stay there.
    if (Traits::kAnyGqaRatio && !place.valid) factors.accumulated[half] = 0.0f;
  }
  if (params.max_logits != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowPlace place = row_place<Traits>(params, work_tile, packed_row + 8 * half);
      const float reached = Traits::kSoftcap ? quad_max(state.largest[half]) : state.reference[half];
      const float largest = reached * params.softmax_scale;
      if (threadIdx.x % 4 == 0 && place.valid && largest != minus_infinity()) {
        atomic_max(params.max_logits + place.head, largest);
      }
    }
  }
  __syncwarp();
  return factors;
}

/// Copies a warpgroup's rows from `staging` to out one by one: with Traits::kAnyGqaRatio they are no whole query rows.
template <typename Traits>
__device__ __forceinline__ void copy_rows(const ForwardParams& params, const WorkTileRows<Traits::kSplitKv>& work_tile,
                                          const unsigned char* staging, int warpgroup, uint32_t barrier) {
  const int thread = static_cast<int>(ptx::read_thread_index());  // else registers keep what follows from it, and spill
  const int chunk = thread % 8;
#pragma unroll 1
  for (int row = thread % 128 / 8; row < 64; row += 16) {
    const RowPlace place = row_place<Traits>(params, work_tile, warpgroup * 64 + row);
    if (!place.valid) continue;
    auto* const out = static_cast<typename Traits::Element*>(params.out) + place.row * params.out_row_stride +
                      place.head * params.out_head_stride;
#pragma unroll
    for (int panel = 0; panel < Traits::kPanelsV; ++panel) {
      const int column = panel * kPanelColumns + chunk * 8;
      if (Traits::kAnyDim && column >= params.head_dim_v) continue;
      *reinterpret_cast<uint4*>(out + column) = *reinterpret_cast<const uint4*>(
          staging + panel * Traits::kPanelBytesQ + row * kPanelRowBytes + (chunk ^ row % 8) * 16);
    }
  }
  // The stage is given back next.
  ptx::named_barrier_sync(barrier, 128);
}

/// Stores the rows of a warpgroup. Bulk stores of its first thread copy out from `staging`, the warpgroup's part of the
/// work tile's Q stage; float32 rows are written directly.
template <typename Traits>
__device__ __forceinline__ void store_rows(const ForwardParams& params, const WorkTileRows<Traits::kSplitKv>& work_tile,
                                           const RowFactors& factors, const float (&o)[Traits::kDimV / 2],
                                           int packed_row, unsigned char* staging, int warpgroup, uint32_t barrier) {
  if (!is_part<Traits>(work_tile) && params.out_type == OutType::kInput) {
    if constexpr (Traits::kSingleStageQ) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const RowPlace place = row_place<Traits>(params, work_tile, packed_row + 8 * half);
        auto* const out = static_cast<typename Traits::Element*>(params.out) + place.row * params.out_row_stride +
                          place.head * params.out_head_stride;
        store_row<Traits>(out, o, half, factors.accumulated[half], place.valid, params.head_dim_v);
      }
      return;
    }
    stage_rows<Traits>(staging, o, factors.accumulated);
    publish_writes(barrier);
    if constexpr (Traits::kAnyGqaRatio) return copy_rows<Traits>(params, work_tile, staging, warpgroup, barrier);
    const int32_t row_of_group = query_row_of<Traits>(params, warpgroup * 64);
    if (threadIdx.x % 128 == 0 && (!Traits::kShortWorkTiles || row_of_group < work_tile.num_rows)) {
      const int32_t first_row = work_tile.row0 + row_of_group;
#pragma unroll
      for (int panel = 0; panel < Traits::kPanelsV; ++panel) {
        const int32_t column = Traits::kAnyDim ? panel * kPanelColumns : 0;
        if (Traits::kAnyDim && column >= params.head_dim_v) continue;
        ptx::tma_store_4d(&params.out_map, staging + panel * Traits::kPanelBytesQ, column,
                          first_head_of<Traits>(params, work_tile.group), first_row, Traits::kAnyDim ? 0 : panel);
      }
      ptx::tma_store_commit();
    }
    __syncwarp();
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RowPlace place = row_place<Traits>(params, work_tile, packed_row + 8 * half);
    if (!place.valid) continue;
    float* to =
        static_cast<float*>(params.out) + place.row * params.out_row_stride + place.head * params.out_head_stride;
    if constexpr (Traits::kSplitKv) {
      if (is_part<Traits>(work_tile)) {
        const int32_t head_dim_v = Traits::kAnyDim ? params.head_dim_v : Traits::kDimV;
        to = params.part_out + (place.row * params.num_heads_q + place.head) * head_dim_v;
      }
    }
    store_row_f32<Traits>(to, o, half, factors.accumulated[half], factors.previous[half], params.head_dim_v);
  }
  ptx::named_barrier_sync(barrier, 128);
}

}  // namespace tangram::sm90
