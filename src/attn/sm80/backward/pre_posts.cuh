// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The two small kernels around the backward kernel. Before: row statistics, delta = rowsum(dout * out) among them,
// counters and sums zeroed. After: dq from its sums. One CTA per query tile and head.
#pragma once

#include <type_traits>

#include "attn/sm80/backward/epilogue.cuh"
#include "attn/sm80/backward/tile_place.cuh"
#include "attn/sm80/backward/traits.cuh"

namespace tangram::sm80::backward {

inline constexpr float kLog2e = 1.44269504088896341f;

template <typename Element>
__device__ __forceinline__ float2 load_pair(const void* data, int64_t at, bool float32) {
  const auto load_float32 = [&] { return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + at); };
  if constexpr (std::is_same_v<Element, float>) {
    return load_float32();
  } else {
    if (float32) return load_float32();
    return ptx::unpack_pair<Element>(*reinterpret_cast<const uint32_t*>(static_cast<const Element*>(data) + at));
  }
}

/// Computes rowsum(dout * out) of a row, by a warp.
template <typename Element>
__device__ __forceinline__ float find_delta(const PrePostParams& params, int64_t row, int head, uint32_t lane) {
  const int64_t out_at = row * params.out_row_stride + head * params.out_head_stride;
  const int64_t dout_at = row * params.dout_row_stride + head * params.dout_head_stride;
  float sum = 0.0f;
  for (auto d = static_cast<int32_t>(lane * 2); d < params.head_dim_v; d += 64) {
    const float2 out = load_pair<Element>(params.out, out_at + d, params.out_float32);
    const float2 dout = load_pair<Element>(params.dout, dout_at + d, false);
    sum += out.x * dout.x + out.y * dout.y;
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  return sum;
}

template <typename Element, int kDimQk>
__global__ void __launch_bounds__(kThreads) before_kernel(const __grid_constant__ PrePostParams params) {
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (blockIdx.x == 0 && threadIdx.x == 0) *params.ticket = 0;
  for (auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x); i < params.num_accum_tiles;
       i += static_cast<int32_t>(gridDim.x * kThreads)) {
    params.split_semaphore[i] = 0;
  }
  if (tile >= params.num_q_tiles) return;  // no queries at all
  const auto [in_tables, accum_tile] = tile_place(params, head, tile);
  const QueryTile rows = params.q_tiles[in_tables];
  if (params.has_empty_tiles && rows.row_begin == rows.row_end) return;
  const uint64_t covered = params.covered_queries ? params.covered_queries[in_tables] : ~uint64_t{0};
  float4* const sums = reinterpret_cast<float4*>(params.dq_sums) + accum_tile * (kStepQueries * kDimQk / 4);
  for (uint32_t i = threadIdx.x; i < kStepQueries * kDimQk / 4; i += kThreads) sums[i] = float4{};
  if (threadIdx.x == 0) params.dq_semaphore[accum_tile] = 0;
  for (uint32_t in_tile = warp; in_tile < kStepQueries; in_tile += kBackwardWarps) {
    RowStatistics row{0.0f, 0.0f};  // of rows that see no key, which may hold NaN
    const int64_t at = int64_t{rows.row_begin} + in_tile;
    if (at < rows.row_end && (covered >> in_tile & 1)) {
      row.lse_log2 = params.lse[at * params.num_heads_q + head] * kLog2e;
      row.delta = params.delta != nullptr ? params.delta[at * params.num_heads_q + head]
                                          : find_delta<Element>(params, at, head, lane);
    }
    if (lane == 0) params.stats[accum_tile * kStepQueries + in_tile] = row;
  }
}

/// Reads the sums as Cta::add_dq adds them, a warp its own part.
template <typename Element, int kDimQk>
__global__ void __launch_bounds__(kThreads) after_kernel(const __grid_constant__ PrePostParams params) {
  using Dq = typename Traits<Element, kDimQk, kDimQk == 192 ? 128 : kDimQk, false>::Dq;
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto [in_tables, accum_tile] = tile_place(params, head, tile);
  const QueryTile rows = params.q_tiles[in_tables];
  if (params.has_empty_tiles && rows.row_begin == rows.row_end) return;
  typename Dq::Sums dq;
  constexpr int kFours = sizeof(dq) / sizeof(float4);
  const float* const from = params.dq_sums + accum_tile * (kStepQueries * kDimQk) + warp * (kFours * 128);
  visit_fours(dq, 0, [&](int i, float& a, float& b, float& c, float& d) {
    if constexpr (kAddsFour) {
      const float4 x = __ldcs(reinterpret_cast<const float4*>(from) + i * 32 + lane);
      a = x.x, b = x.y, c = x.z, d = x.w;
    } else {
      const float* const at = from + i * 128 + lane;
      a = __ldcs(at), b = __ldcs(at + 32), c = __ldcs(at + 64), d = __ldcs(at + 96);
    }
  });
  write_part<Element, Dq>(
      dq, warp, lane, params.softmax_scale, params.head_dim, params.accumulate_dq,
      [&](int32_t row) { return rows.row_begin + row < rows.row_end; },
      [&](int32_t row) {
        const int64_t at = (int64_t{rows.row_begin} + row) * params.dq_row_stride + head * params.dq_head_stride;
        return gradient_row(params.dq, params.dq_type, at);
      });
}

}  // namespace tangram::sm80::backward
