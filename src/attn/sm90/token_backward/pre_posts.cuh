// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The two small kernels around the main one. Before: row statistics of every work tile, as the main kernel loads them,
// from out, dout and lse, and zeroed sums. After: dk and dv from their sums.
#pragma once

#include "attn/sm90/backward/pre_posts.cuh"
#include "attn/sm90/token_backward/traits.cuh"

namespace tangram::sm90::token_backward {

inline constexpr int kPrePostThreads = backward::kPrePostThreads;

/// Whether one of eight elements is NaN.
template <typename Element>
__device__ __forceinline__ bool has_nan(const uint4& words) {
  constexpr uint32_t kInfinity = __is_same(Element, __half) ? 0x7c00 : 0x7f80;
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  bool found = false;
#pragma unroll
  for (const uint32_t w : word) {
    found = found || (w & 0x7fff) > kInfinity || (w >> 16 & 0x7fff) > kInfinity;
  }
  return found;
}

/// Which keys (or values) hold NaN: a warp for every eight of a K/V head.
template <typename Element, int kHeadDim>
__device__ __forceinline__ void find_nans(const PrePostParams& params) {
  constexpr int kLanes = kHeadDim / 8;  // of a row
  constexpr int kRowsAtOnce = 32 / kLanes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t bytes = (int64_t{params.seqlen_k} + 7) / 8, all = bytes * params.num_heads_kv;
  const int64_t num_warps = int64_t{gridDim.x} * (kPrePostThreads / 32);
  for (int64_t at = int64_t{blockIdx.x} * (kPrePostThreads / 32) + threadIdx.x / 32; at < 2 * all; at += num_warps) {
    const bool is_v = at >= all;
    const int64_t kv_head = (is_v ? at - all : at) / bytes, first = (at % bytes) * 8;
    uint32_t found = 0;
#pragma unroll
    for (int row = 0; row < 8; row += kRowsAtOnce) {
      const int64_t key = first + row + lane / kLanes;
      const char* from = static_cast<const char*>(params.keys[is_v]) + kv_head * params.key_head_bytes[is_v] +
                         key * params.key_row_bytes[is_v] + lane % kLanes * 16;
      const bool mine = key < params.seqlen_k && has_nan<Element>(__ldg(reinterpret_cast<const uint4*>(from)));
      const uint32_t lanes = __ballot_sync(0xffffffff, mine);
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        if ((lanes >> (r * kLanes) & ((1u << kLanes) - 1)) != 0) found |= 1u << (row + r);
      }
    }
    if (lane == 0) params.nans[at] = static_cast<uint8_t>(found);
  }
}

/// One CTA for each work tile, through all head groups, or more, for sums of more keys. Rows that are none, or see
/// nothing, have statistics of zero.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kPrePostThreads) before_kernel(const __grid_constant__ PrePostParams params) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t num_sums = int64_t{2} * params.num_heads_kv * params.seqlen_k * (kHeadDim / 4);
  const int64_t num_threads = int64_t{gridDim.x} * kPrePostThreads;
  for (int64_t i = int64_t{blockIdx.x} * kPrePostThreads + thread; i < num_sums; i += num_threads) {
    reinterpret_cast<float4*>(params.dk_sums)[i] = float4{};
  }
  const auto work_tile = static_cast<int32_t>(blockIdx.x);
  for (int part = thread; work_tile == 0 && part < params.num_parts; part += kPrePostThreads) params.tickets[part] = 0;
  if (params.nans != nullptr) find_nans<Element, kHeadDim>(params);
  const Packing& packing = params.packing;
  if (work_tile >= params.num_heads_kv * packing.parts * params.work_tiles_per_group) return;
  const int32_t group = work_tile / params.work_tiles_per_group, kv_head = group / packing.parts;
  const int32_t num_heads_q = params.num_heads_kv * packing.parts * packing.heads;
  const int32_t first_query = (work_tile - group * params.work_tiles_per_group) * packing.tokens;
  constexpr int kLanes = kHeadDim / 8;  // of a row
  constexpr int kRowsAtOnce = kPrePostThreads / kLanes;
  const int column = thread % kLanes * 8;
#pragma unroll 4
  for (int packed = thread / kLanes; packed < kRows; packed += kRowsAtOnce) {
    const int32_t token = packed / packing.rows_per_token, in_group = packed - token * packing.rows_per_token;
    const int32_t query = first_query + token, head = group * packing.heads + in_group;
    float lse = 0.0f, sum = 0.0f;
    bool sees = false;
    if (token < packing.tokens && query < params.seqlen_q && in_group < packing.heads) {
      lse = __ldg(params.lse + int64_t{query} * num_heads_q + head);
      sees = __ldg(params.counts + int64_t{kv_head} * params.seqlen_q + query) > 0;
    }
    if (sees) {
      const int64_t dout_at = query * params.dout_row_stride + head * params.dout_head_stride + column;
      const int64_t out_at = query * params.out_row_stride + head * params.out_head_stride + column;
      float x[8], y[8];
      backward::unpack_eight<Element>(
          y, __ldg(reinterpret_cast<const uint4*>(static_cast<const Element*>(params.dout) + dout_at)));
      if (params.out_float32) {
        backward::load_eight_floats(x, static_cast<const float*>(params.out) + out_at);
      } else {
        backward::unpack_eight<Element>(
            x, __ldg(reinterpret_cast<const uint4*>(static_cast<const Element*>(params.out) + out_at)));
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) sum += x[k] * y[k];
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (thread % kLanes == 0) {
      const uint2 lse_terms = backward::split_in_three(sees ? lse * (-1.0f / params.softmax_scale) : 0.0f);
      const uint2 delta_terms = backward::split_in_three(-sum);
      reinterpret_cast<uint4*>(params.stats)[int64_t{work_tile} * kRows + packed] = {lse_terms.x, lse_terms.y,
                                                                                     delta_terms.x, delta_terms.y};
    }
  }
}

/// A thread for every four sums, of dk and of dv.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kPrePostThreads) after_kernel(const __grid_constant__ PrePostParams params) {
  const int64_t num_vectors = int64_t{params.num_heads_kv} * params.seqlen_k * (kHeadDim / 4);
  const int64_t vector = int64_t{blockIdx.x} * kPrePostThreads + threadIdx.x;
  ptx::grid_dependency_wait();
  if (vector >= 2 * num_vectors) return;
  const bool is_dv = vector >= num_vectors;
  const int64_t place = (is_dv ? vector - num_vectors : vector) / (kHeadDim / 4);
  const int64_t kv_head = place / params.seqlen_k, key = place - kv_head * params.seqlen_k;
  const float4 sums = __ldcs(reinterpret_cast<const float4*>(params.dk_sums) + vector);
  const float scale = is_dv ? 1.0f : params.softmax_scale;
  const int64_t at = (is_dv ? key * params.dv_row_stride + kv_head * params.dv_head_stride
                            : key * params.dk_row_stride + kv_head * params.dk_head_stride) +
                     sum_column(static_cast<int>(vector % (kHeadDim / 4)) * 4);
  void* to = is_dv ? params.dv : params.dk;
  if (params.dkv_type == GradType::kFloat32) {
    auto* row = reinterpret_cast<float2*>(static_cast<float*>(to) + at);
    row[0] = {sums.x * scale, sums.y * scale};
    row[4] = {sums.z * scale, sums.w * scale};
  } else {
    auto* row = reinterpret_cast<uint32_t*>(static_cast<Element*>(to) + at);
    row[0] = pack_pair<Element>(sums.x * scale, sums.y * scale);
    row[4] = pack_pair<Element>(sums.z * scale, sums.w * scale);
  }
}

}  // namespace tangram::sm90::token_backward
