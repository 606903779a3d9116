// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Writes gradients from registers: in the input dtype or float32, set or added. Head splits first add up in a
// float32 accumulator tile; the last head split writes the sum.
#pragma once

#include "attn/sm80/backward/traits.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/reduce.cuh"

namespace tangram::sm80::backward {

/// Which additions to global memory the device has.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kAddsFour = false;
#else
inline constexpr bool kAddsFour = true;
#endif

/// Adds four float32, aligned to 16 bytes; in no order.
template <bool kAtOnce = kAddsFour>
__device__ __forceinline__ void add_four(float4* to, const float4& value) {
  if constexpr (kAtOnce) {
    ptx::reduce_add_f32x4(to, value);
  } else {
    float* const floats = reinterpret_cast<float*>(to);
    ptx::reduce_add_f32(floats, value.x);
    ptx::reduce_add_f32(floats + 1, value.y);
    ptx::reduce_add_f32(floats + 2, value.z);
    ptx::reduce_add_f32(floats + 3, value.w);
  }
}

/// Two neighbouring sums of a row, times `scale`, at `to`, which is of `type`.
template <typename Element>
__device__ __forceinline__ void write_pair(void* to, float2 value, GradType type, bool accumulate) {
  if (type == GradType::kInput) {
    *static_cast<uint32_t*>(to) = ptx::pack_pair<Element>(value.x, value.y);
    return;
  }
  float2* const place = static_cast<float2*>(to);
  if (accumulate) {
    const float2 old = *place;
    value.x += old.x;
    value.y += old.y;
  }
  *place = value;
}

/// Where a row of a gradient goes, of one head: its first column.
struct GradientRow {
  char* first;
  GradType type;
};
__device__ __forceinline__ GradientRow gradient_row(void* gradient, GradType type, int64_t at) {
  return {static_cast<char*>(gradient) + at * (type == GradType::kFloat32 ? 4 : 2), type};
}

/// Whether gradients of a key, counted in the work tile, are written.
__device__ __forceinline__ bool writes_key(const Params& params, const WorkTile& work_tile, int32_t in_tile) {
  // Accumulated gradients of keys that no query sees belong to others, who may be using them.
  return work_tile.row_begin + in_tile < work_tile.row_end &&
         (!params.accumulate_dkv || (work_tile.covered[in_tile / 32] >> (in_tile % 32) & 1));
}
/// Where the gradient of a key goes: to the tensor of the call or, by Params::places, to another.
__device__ __forceinline__ GradientRow key_gradient_row(const Params& params, const WorkTile& work_tile,
                                                        int32_t in_tile, void* gradient, void* final,
                                                        void* const* others, int64_t row_stride, int64_t head_stride) {
  int64_t row = int64_t{work_tile.row_begin} + in_tile;
  void* to = gradient;
  GradType type = params.dkv_type;
  if (params.places != nullptr) {
    const uint32_t target = __ldg(params.places + row), tensor = target >> kGradientRowBits;
    row = target & ((1u << kGradientRowBits) - 1);
    if (tensor == kFinalTensor) {
      to = final;
      type = params.final_type;
    } else if (tensor >= kFirstOtherTensor) {
      to = others[tensor - kFirstOtherTensor];
    }
  }
  return gradient_row(to, type, row * row_stride + work_tile.kv_head * head_stride);
}
__device__ __forceinline__ GradientRow dk_row(const Params& params, const WorkTile& work_tile, int32_t in_tile) {
  return key_gradient_row(params, work_tile, in_tile, params.dk, params.dk_final, params.dk_others,
                          params.dk_row_stride, params.dk_head_stride);
}
__device__ __forceinline__ GradientRow dv_row(const Params& params, const WorkTile& work_tile, int32_t in_tile) {
  return key_gradient_row(params, work_tile, in_tile, params.dv, params.dv_final, params.dv_others,
                          params.dv_row_stride, params.dv_head_stride);
}

/// Writes a warp's part of a product, times `scale`, `dim` columns of it. writes(row) says whether a row of the product
/// is stored, place(row) where.
template <typename Element, typename Part, typename Writes, typename Place>
__device__ __forceinline__ void write_part(const typename Part::Sums& sums, uint32_t warp, uint32_t lane, float scale,
                                           int32_t dim, bool accumulate, const Writes& writes, const Place& place) {
  const auto first_col = static_cast<int32_t>(Part::first_col(warp) + lane % 4 * 2);
#pragma unroll
  for (int m = 0; m < Part::kM; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto row = static_cast<int32_t>(Part::first_row(warp) + lane / 4) + m * 16 + r * 8;
      if (!writes(row)) continue;
      const GradientRow to = place(row);
      const int element_bytes = to.type == GradType::kFloat32 ? 4 : 2;
      char* const begin = to.first + first_col * element_bytes;
#pragma unroll
      for (int j = 0; j < Part::kN16 * 2; ++j) {
        if (first_col + j * 8 >= dim) continue;
        write_pair<Element>(begin + j * 8 * element_bytes,
                            {sums[m][j * 4 + r * 2] * scale, sums[m][j * 4 + r * 2 + 1] * scale}, to.type, accumulate);
      }
    }
  }
}

/// Calls visit(index, a, b, c, d) for every four sums.
template <int kM, int kCount, typename Visit>
__device__ __forceinline__ void visit_fours(float (&sums)[kM][kCount], int first, const Visit& visit) {
  constexpr int kFours = kCount / 4;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      visit(first + m * kFours + i, sums[m][i * 4], sums[m][i * 4 + 1], sums[m][i * 4 + 2], sums[m][i * 4 + 3]);
    }
  }
}

/// Head splits add up in an accumulator tile. The first one stores, so that no clearing is needed; the last one adds
/// the sum to its registers. Returns whether this one is the last. Deterministic calls add in the order of head splits,
/// and each waits only for those with smaller tickets. In other calls head splits have the places that they drew before
/// their last steps (WorkState::place). One in the middle waits for the first, and the last waits for all. The awaited
/// ones have at most their last step left. No deadlock in either case, since the first one never waits.
template <typename Traits>
__device__ __forceinline__ bool join_pieces(const Params& params, const WorkState& state, typename Traits::Dk::Sums& dk,
                                            typename Traits::Dv::Sums& dv) {
  constexpr int kFoursDk = sizeof(typename Traits::Dk::Sums) / sizeof(float4);
  const WorkTile& work_tile = state.tile;
  float4* const accum_tile = reinterpret_cast<float4*>(params.accum_tiles) +
                             int64_t{work_tile.accum_tile} * (Traits::kAccumTileFloats / 4) + threadIdx.x;
  int32_t* const turn = params.split_semaphore + work_tile.accum_tile;
  const int32_t place = params.deterministic ? work_tile.head_split : state.place;
  const bool first = place == 0, last = place == work_tile.num_head_splits - 1;
  const auto visit = [&](const auto& each) {
    visit_fours(dk, 0, each);
    visit_fours(dv, kFoursDk, each);
  };
  if (!first) {
    if (threadIdx.x == 0) {
      const int32_t needed = last || params.deterministic ? place : 1;
      while (ptx::load_acquire(turn) % kPieceArrived < needed) {
      }
    }
    __syncthreads();
  }
  if (last) {
    visit([&](int i, float& a, float& b, float& c, float& d) {
      const float4 x = __ldcg(accum_tile + i * kThreads);
      a += x.x, b += x.y, c += x.z, d += x.w;
    });
    return true;
  }
  if (first) {
    visit([&](int i, float a, float b, float c, float d) { __stcg(accum_tile + i * kThreads, float4{a, b, c, d}); });
  } else {
    visit([&](int i, float a, float b, float c, float d) { add_four(accum_tile + i * kThreads, float4{a, b, c, d}); });
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) ptx::add_release(turn, 1);
  return false;
}

/// dk and dv of a work tile.
template <typename Traits>
__device__ __forceinline__ void write_gradients(const Params& params, const WorkState& state, uint32_t warp,
                                                uint32_t lane, typename Traits::Dk::Sums& dk,
                                                typename Traits::Dv::Sums& dv) {
  using Element = typename Traits::Element;
  const WorkTile& work_tile = state.tile;
  if (work_tile.num_head_splits > 1 && !join_pieces<Traits>(params, state, dk, dv)) return;
  const auto writes = [&](int32_t row) { return writes_key(params, work_tile, row); };
  write_part<Element, typename Traits::Dv>(dv, warp, lane, 1.0f, params.head_dim_v, params.accumulate_dkv, writes,
                                           [&](int32_t row) { return dv_row(params, work_tile, row); });
  write_part<Element, typename Traits::Dk>(dk, warp, lane, params.softmax_scale, params.head_dim, params.accumulate_dkv,
                                           writes, [&](int32_t row) { return dk_row(params, work_tile, row); });
}

}  // namespace tangram::sm80::backward
