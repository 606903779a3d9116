// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The two small kernels around the main one. Before: row statistics of every tile, as the main kernel loads them, from
// out, dout and lse (or delta), and zeroed sums. After: dk and dv from their sums.
#pragma once

#include "attn/sm90/backward/pre_posts.cuh"
#include "attn/sm90/query_backward/params.hpp"

namespace tangram::sm90::query_backward {

inline constexpr int kPrePostThreads = backward::kPrePostThreads;
inline constexpr int kGroupsOfCta = kPrePostThreads / 32;  // of keys, dk and dv each for itself

/// One CTA for each tile of rows and head group.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kPrePostThreads) before_kernel(const __grid_constant__ PrePostParams params) {
  ptx::grid_dependency_launch();
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && thread == 0) *params.ticket = 0;
  const int64_t num_sums = int64_t{2} * params.num_heads_kv * params.num_key_groups * (kGroupFloats<kHeadDim> / 4);
  const int64_t num_threads = int64_t{gridDim.x} * kPrePostThreads;
  for (int64_t i = int64_t{blockIdx.x} * kPrePostThreads + thread; i < num_sums; i += num_threads) {
    reinterpret_cast<float4*>(params.dk_sums)[i] = float4{};
  }
  const int tile = static_cast<int>(blockIdx.x) / params.num_head_groups;
  const int head_group = static_cast<int>(blockIdx.x) - tile * params.num_head_groups;
  if (tile >= params.num_tiles) return;  // no queries at all
  constexpr int kLanes = kHeadDim / 8;   // of a row
  constexpr int kRowsAtOnce = kPrePostThreads / kLanes;
  constexpr int kPasses = kRows / kRowsAtOnce;
  const int column = thread % kLanes * 8;
  uint4 out[kPasses], dout[kPasses];
  float lse[kPasses], delta[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int packed = i * kRowsAtOnce + thread / kLanes;
    const int64_t row = int64_t{tile} * (kRows >> params.pack_log2) + (packed >> params.pack_log2);
    const int head = (head_group << params.pack_log2) + (packed & ((1 << params.pack_log2) - 1));
    out[i] = dout[i] = uint4{};
    lse[i] = delta[i] = 0.0f;
    if (row >= params.seqlen_q) continue;
    if (thread % kLanes == 0) {
      lse[i] = params.lse[row * params.num_heads_q + head];
      if (params.delta != nullptr) delta[i] = params.delta[row * params.num_heads_q + head];
    }
    if (params.delta != nullptr) continue;
    const int64_t out_at = row * params.out_row_stride + head * params.out_head_stride + column;
    const Element* from = static_cast<const Element*>(params.dout);
    from += row * params.dout_row_stride + head * params.dout_head_stride + column;
    dout[i] = __ldg(reinterpret_cast<const uint4*>(from));
    if (!params.out_float32) {
      out[i] = __ldg(reinterpret_cast<const uint4*>(static_cast<const Element*>(params.out) + out_at));
    } else {
      float x[8], y[8];
      backward::load_eight_floats(x, static_cast<const float*>(params.out) + out_at);
      backward::unpack_eight<Element>(y, dout[i]);
#pragma unroll
      for (int k = 0; k < 8; ++k) delta[i] += x[k] * y[k];
    }
  }
  uint4* stats =
      reinterpret_cast<uint4*>(params.stats) + (int64_t{head_group} * params.num_tiles + tile) * (kStatsFloats / 4);
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float x[8], y[8];
    backward::unpack_eight<Element>(x, out[i]);
    backward::unpack_eight<Element>(y, dout[i]);
    float sum = delta[i];
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += x[k] * y[k];
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (thread % kLanes == 0) {
      const uint2 lse_terms = backward::split_in_three(lse[i] * (-1.0f / params.softmax_scale));
      const uint2 delta_terms = backward::split_in_three(-sum);
      stats[i * kRowsAtOnce + thread / kLanes] = {lse_terms.x, lse_terms.y, delta_terms.x, delta_terms.y};
    }
  }
}

/// A warp for each group of keys, of dk and of dv.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kPrePostThreads) after_kernel(const __grid_constant__ PrePostParams params) {
  const int64_t warp = int64_t{blockIdx.x} * kGroupsOfCta + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t num_sums = int64_t{params.num_heads_kv} * params.num_key_groups;
  ptx::grid_dependency_wait();
  if (warp >= 2 * num_sums) return;
  const bool is_dv = warp >= num_sums;
  const auto place = static_cast<int32_t>(is_dv ? warp - num_sums : warp);
  const int32_t kv_head = place / params.num_key_groups;
  const int32_t first_key = (place - kv_head * params.num_key_groups) * kGroupKeys;
  const float4* from = reinterpret_cast<const float4*>(params.dk_sums) + warp * (kGroupFloats<kHeadDim> / 4) + lane;
  float sums[kHeadDim / 2];  // as the accumulators of a wgmma
#pragma unroll
  for (int j = 0; j < kHeadDim / 8; ++j) {
    const float4 x = __ldcs(from + j * 32);
    sums[j * 4] = x.x, sums[j * 4 + 1] = x.y, sums[j * 4 + 2] = x.z, sums[j * 4 + 3] = x.w;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = int64_t{first_key} + lane / 4 + r * 8;
    const int64_t at = is_dv ? row * params.dv_row_stride + kv_head * params.dv_head_stride
                             : row * params.dk_row_stride + kv_head * params.dk_head_stride;
    char* to = static_cast<char*>(is_dv ? params.dv : params.dk) + at * (params.dkv_type == GradType::kFloat32 ? 4 : 2);
    backward::write_row<Element, kHeadDim, false>(sums, r * 2, is_dv ? 1.0f : params.softmax_scale, to,
                                                  row < params.seqlen_k, params.dkv_type, false, lane, kHeadDim);
  }
}

}  // namespace tangram::sm90::query_backward
