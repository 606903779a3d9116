// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The two small kernels around the backward kernel. Before: delta = rowsum(dout * out), row statistics in the order in
// which the backward kernel loads them, counters zeroed. After: dq from its sums. One CTA per query tile and head.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/backward/traits.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::backward {

inline constexpr int kEdgeThreads = 256;

/// Eight elements of a row of float32 or Element.
template <typename Element>
__device__ __forceinline__ void load_eight(float (&x)[8], const void* base, int64_t at, bool float32) {
  if (float32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(base) + at);
    const float4 low = __ldg(from), high = __ldg(from + 1);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(static_cast<const Element*>(base) + at));
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_pair<Element>(word[i]);
    x[i * 2] = pair.x;
    x[i * 2 + 1] = pair.y;
  }
}

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kEdgeThreads) before_kernel(const __grid_constant__ EdgeParams params) {
  constexpr int kLanes = kHeadDim / 8;  // per row
  constexpr int kRowsAtOnce = kEdgeThreads / kLanes;
  __shared__ __align__(16) float stats[kStatsFloats];
  ptx::grid_dependency_launch();
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && thread == 0) *params.ticket = 0;
  if (tile >= params.num_q_tiles) return;  // no queries at all
  const int64_t slab = int64_t{head} * params.num_q_tiles + tile;
  const QueryTile rows = params.q_tiles[tile];
  const int column = thread % kLanes * 8;
  // Rows that see no key may hold NaN: their statistics are zeros.
  const uint64_t covered = params.covered_queries ? params.covered_queries[tile] : ~uint64_t{0};
#pragma unroll
  for (int i = 0; i < kBlockM / kRowsAtOnce; ++i) {
    const int in_tile = i * kRowsAtOnce + thread / kLanes;
    const int64_t row = int64_t{rows.row_begin} + in_tile;
    float sum = 0.0f;
    const bool valid = row < rows.row_end && (covered >> in_tile & 1);
    if (valid) {
      float out[8], dout[8];
      load_eight<Element>(out, params.out, row * params.out_row_stride + head * params.out_head_stride + column,
                          params.out_float32);
      load_eight<Element>(dout, params.dout, row * params.dout_row_stride + head * params.dout_head_stride + column,
                          false);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum += out[k] * dout[k];
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (thread % kLanes == 0) {
      const float lse = valid ? params.lse[row * params.num_heads_q + head] : 0.0f;
      const uint2 lse_terms = split_in_three(lse * params.lse_factor), delta_terms = split_in_three(-sum);
      reinterpret_cast<uint4*>(stats)[in_tile] = {lse_terms.x, lse_terms.y, delta_terms.x, delta_terms.y};
    }
  }
  if (params.zeroed_sums) {
    float4* sums = reinterpret_cast<float4*>(params.dq_sums) + slab * (kBlockM * kHeadDim / 4);
#pragma unroll
    for (int i = 0; i < kBlockM * kHeadDim / 4 / kEdgeThreads; ++i) sums[i * kEdgeThreads + thread] = float4{};
  }
  if (thread < 2) params.turns[slab * 2 + thread] = 0;
  __syncthreads();
  if (thread < kStatsFloats / 4) {
    reinterpret_cast<float4*>(params.stats)[slab * (kStatsFloats / 4) + thread] =
        reinterpret_cast<const float4*>(stats)[thread];
  }
}

/// Reads the sums in the fragment order of Consumer::add_dq, a warp its own part.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kEdgeThreads) after_kernel(const __grid_constant__ EdgeParams params) {
  constexpr int kColumns = kHeadDim / 2;
  constexpr int kVectors = kColumns / 8;
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const int part = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t slab = int64_t{head} * params.num_q_tiles + tile;
  const QueryTile rows = params.q_tiles[tile];
  ptx::grid_dependency_wait();
  const float4* from =
      reinterpret_cast<const float4*>(params.dq_sums) + slab * (kBlockM * kHeadDim / 4) + part * (32 * kVectors) + lane;
  const bool stored = params.zeroed_sums || params.turns[slab * 2 + part / 4] != 0;
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
    write_row<Element, kColumns>(sums, r * 2, params.softmax_scale, to, row < rows.row_end, params.dq_type,
                                 params.accumulate_dq, lane);
  }
}

}  // namespace tangram::sm90::backward
