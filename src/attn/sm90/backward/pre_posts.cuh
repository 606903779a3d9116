// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The two small kernels around the backward kernel. Before: delta = rowsum(dout * out), or as given, row statistics in
// the order in which the backward kernel loads them, counters zeroed. After: dq from its sums. One CTA per query tile
// and head.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/backward/tile_place.cuh"
#include "attn/sm90/backward/traits.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::backward {

inline constexpr int kPrePostThreads = 256;

__host__ __device__ constexpr int power_of_two_from(int count) {
  return count <= 1 ? 1 : 2 * power_of_two_from((count + 1) / 2);
}

/// Eight elements of a row, as they are loaded.
template <typename Element>
__device__ __forceinline__ void unpack_eight(float (&x)[8], const uint4& words) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_pair<Element>(word[i]);
    x[i * 2] = pair.x;
    x[i * 2 + 1] = pair.y;
  }
}

__device__ __forceinline__ void load_eight_floats(float (&x)[8], const float* from) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(from));
  const float4 high = __ldg(reinterpret_cast<const float4*>(from) + 1);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/// Row statistics of a tile, from out, dout and lse. All loads of a thread come before anything waits for the first: in
/// a small call this kernel is one chain of latencies.
template <typename Element, int kDimV, bool kAnyDim>
__device__ __forceinline__ void find_statistics(float* stats, const PrePostParams& params, const QueryTile& rows,
                                                uint64_t covered, int head, int thread) {
  constexpr int kLanes = power_of_two_from(kDimV / 8);  // per row
  constexpr int kRowsAtOnce = kPrePostThreads / kLanes;
  constexpr int kPasses = kBlockM / kRowsAtOnce;
  const int column = thread % kLanes * 8;
  const auto row_in_tile = [&](int pass) { return pass * kRowsAtOnce + thread / kLanes; };
  // Rows that see no key may hold NaN: their statistics are zeros.
  const auto is_valid = [&](int in_tile) {
    if (kAnyDim && column >= params.head_dim_v) return false;
    return rows.row_begin + in_tile < rows.row_end && (covered >> in_tile & 1);
  };
  const auto out_at = [&](int in_tile) {
    return (int64_t{rows.row_begin} + in_tile) * params.out_row_stride + head * params.out_head_stride + column;
  };
  uint4 out[kPasses], dout[kPasses];
  float lse[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    out[i] = dout[i] = uint4{};
    lse[i] = 0.0f;
    if (!is_valid(row_in_tile(i))) continue;
    const int64_t row = int64_t{rows.row_begin} + row_in_tile(i);
    const Element* from = static_cast<const Element*>(params.dout);
    from += row * params.dout_row_stride + head * params.dout_head_stride + column;
    dout[i] = __ldg(reinterpret_cast<const uint4*>(from));
    from = static_cast<const Element*>(params.out) + out_at(row_in_tile(i));
    if (!params.out_float32) out[i] = __ldg(reinterpret_cast<const uint4*>(from));
    if (thread % kLanes == 0) lse[i] = params.lse[row * params.num_heads_q + head];
  }
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int in_tile = row_in_tile(i);
    float x[8], y[8], sum = 0.0f;
    unpack_eight<Element>(x, out[i]);
    unpack_eight<Element>(y, dout[i]);
    if (params.out_float32 && is_valid(in_tile)) {
      load_eight_floats(x, static_cast<const float*>(params.out) + out_at(in_tile));
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += x[k] * y[k];
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (thread % kLanes == 0) {
      const uint2 lse_terms = split_in_three(lse[i] * params.lse_factor), delta_terms = split_in_three(-sum);
      reinterpret_cast<uint4*>(stats)[in_tile] = {lse_terms.x, lse_terms.y, delta_terms.x, delta_terms.y};
    }
  }
}

/// Copies statistics if delta is given; one thread for each row.
__device__ __forceinline__ void copy_statistics(float* stats, const PrePostParams& params, const QueryTile& rows,
                                                uint64_t covered, int head, int in_tile) {
  float lse = 0.0f, delta = 0.0f;
  if (rows.row_begin + in_tile < rows.row_end && (covered >> in_tile & 1)) {
    const int64_t at = (int64_t{rows.row_begin} + in_tile) * params.num_heads_q + head;
    lse = params.lse[at];
    delta = params.delta[at];
  }
  const uint2 lse_terms = split_in_three(lse * params.lse_factor), delta_terms = split_in_three(-delta);
  reinterpret_cast<uint4*>(stats)[in_tile] = {lse_terms.x, lse_terms.y, delta_terms.x, delta_terms.y};
}

__device__ __forceinline__ bool has_zeroed_sums(const PrePostParams& params) {
  return params.always_zeroed || (params.mask_info != nullptr ? params.mask_info->zeroed_sums : params.zeroed_sums);
}

template <typename Element, int kDimQk, int kDimV, bool kAnyDim>
__device__ __forceinline__ void begin_call(const PrePostParams& params) {
  __shared__ __align__(16) float stats[kStatsFloats];
  ptx::grid_dependency_launch();
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && thread == 0) *params.ticket = 0;
  if (kIsSplit<kDimQk, kDimV> && blockIdx.x == 0 && thread == 1) params.ticket[1] = 0;
  const auto num_threads = static_cast<int32_t>(gridDim.x * kPrePostThreads);
  for (int32_t i = static_cast<int32_t>(blockIdx.x) * kPrePostThreads + thread; i < params.num_accum_tiles;
       i += num_threads) {
    params.split_semaphore[i] = 0;
  }
  if (tile >= params.num_q_tiles) return;  // no queries at all
  const TilePlace place = tile_place(params, head, tile);
  const QueryTile rows = params.q_tiles[place.tile];
  if (params.mask_info != nullptr && rows.row_begin == rows.row_end) return;
  const int64_t accum_tile = place.accum_tile;
  const uint64_t covered = params.covered_queries ? params.covered_queries[place.tile] : ~uint64_t{0};
  if (params.delta == nullptr) {
    find_statistics<Element, kDimV, kAnyDim>(stats, params, rows, covered, head, thread);
  } else if (thread < kBlockM) {
    copy_statistics(stats, params, rows, covered, head, thread);
  }
  if (has_zeroed_sums(params)) {
    float4* sums = reinterpret_cast<float4*>(params.dq_sums) + accum_tile * (kBlockM * kDimQk / 4);
#pragma unroll
    for (int i = 0; i < kBlockM * kDimQk / 4 / kPrePostThreads; ++i) sums[i * kPrePostThreads + thread] = float4{};
  }
  if (thread < 2) params.dq_semaphore[accum_tile * 2 + thread] = 0;
  __syncthreads();
  if (thread < kStatsFloats / 4) {
    reinterpret_cast<float4*>(params.stats)[accum_tile * (kStatsFloats / 4) + thread] =
        reinterpret_cast<const float4*>(stats)[thread];
  }
}

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kPrePostThreads) before_kernel(const __grid_constant__ PrePostParams params) {
  begin_call<Element, kHeadDim, kHeadDim, false>(params);
}
/// Preprocess kernel for any head dims of the class.
template <typename Element, int kDimQk, int kDimV>
__global__ void __launch_bounds__(kPrePostThreads) before_any_dim_kernel(const __grid_constant__ PrePostParams params) {
  begin_call<Element, kDimQk, kDimV, true>(params);
}

/// Reads the sums in the fragment order of Consumer::add_dq, a warp its own part.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kPrePostThreads) after_kernel(const __grid_constant__ PrePostParams params) {
  constexpr int kColumns = kHeadDim / 2;
  constexpr int kVectors = kColumns / 8;
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const int part = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto [tile_in_tables, accum_tile] = tile_place(params, head, tile);
  const QueryTile rows = params.q_tiles[tile_in_tables];
  ptx::grid_dependency_wait();
  if (params.mask_info != nullptr && rows.row_begin == rows.row_end) return;
  const float4* from = reinterpret_cast<const float4*>(params.dq_sums) + accum_tile * (kBlockM * kHeadDim / 4) +
                       part * (32 * kVectors) + lane;
  const bool stored = has_zeroed_sums(params) || params.dq_semaphore[accum_tile * 2 + part / 4] != 0;
  float sums[kColumns / 2];  // as the accumulators of a wgmma: 4j + 2r + e
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float4 x = stored ? __ldcs(from + i * 32) : float4{};
    sums[i * 4] = x.x, sums[i * 4 + 1] = x.y, sums[i * 4 + 2] = x.z, sums[i * 4 + 3] = x.w;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = int64_t{rows.row_begin} + part % 4 * 16 + lane / 4 + r * 8;
    const int64_t at = row * params.dq_row_stride + head * params.dq_head_stride + part / 4 * kColumns;
    char* to = static_cast<char*>(params.dq) + at * (params.dq_type == GradType::kFloat32 ? 4 : 2);
    write_row<Element, kColumns, false>(sums, r * 2, params.softmax_scale, to, row < rows.row_end, params.dq_type,
                                        params.accumulate_dq, lane, kColumns);
  }
}

/// Postprocess kernel for any head_dim of the class: 32 columns at a time, wherever they are in the accumulator tile.
template <typename Element, int kDimQk>
__global__ void __launch_bounds__(kPrePostThreads) after_any_dim_kernel(const __grid_constant__ PrePostParams params) {
  using Dq = DqLayout<kDimQk>;
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto [tile_in_tables, accum_tile] = tile_place(params, head, tile);
  const QueryTile rows = params.q_tiles[tile_in_tables];
  ptx::grid_dependency_wait();
  if (params.mask_info != nullptr && rows.row_begin == rows.row_end) return;
  const bool zeroed_sums = has_zeroed_sums(params);
  const float* from = params.dq_sums + accum_tile * (kBlockM * kDimQk) + lane * 4;
#pragma unroll
  for (int quad = 0; quad < kDimQk / 32; ++quad) {
    if (quad % 2 != static_cast<int>(threadIdx.x) / 128 || quad * 32 >= params.head_dim) continue;
    float sums[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int group = quad * 4 + i;
      const bool stored = zeroed_sums || params.dq_semaphore[accum_tile * 2 + Dq::side_of(group)] != 0;
      const float4 x = stored ? __ldcs(reinterpret_cast<const float4*>(from + Dq::place(group, warp))) : float4{};
      sums[i * 4] = x.x, sums[i * 4 + 1] = x.y, sums[i * 4 + 2] = x.z, sums[i * 4 + 3] = x.w;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = int64_t{rows.row_begin} + warp * 16 + lane / 4 + r * 8;
      const int64_t at = row * params.dq_row_stride + head * params.dq_head_stride + quad * 32;
      char* to = static_cast<char*>(params.dq) + at * (params.dq_type == GradType::kFloat32 ? 4 : 2);
      write_row<Element, 32, true>(sums, r * 2, params.softmax_scale, to, row < rows.row_end, params.dq_type,
                                   params.accumulate_dq, lane, params.head_dim - quad * 32);
    }
  }
}

}  // namespace tangram::sm90::backward
