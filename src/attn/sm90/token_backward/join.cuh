// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The kernel that adds up dq where a call walks its keys in ranges: each range's main kernel stored its share of it.
#pragma once

#include "attn/sm90/backward/edges.cuh"
#include "attn/sm90/token_backward/params.hpp"

namespace tangram::sm90::token_backward {

inline constexpr int kJoinThreads = 256;

/// A thread for every four columns of a row.
template <typename Element>
__global__ void __launch_bounds__(kJoinThreads) join_kernel(const __grid_constant__ JoinParams params) {
  const int32_t vectors = params.head_dim / 4;  // of a row
  const int64_t num_vectors = int64_t{params.num_queries} * params.heads * vectors;
  const int64_t vector = int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (vector >= num_vectors) return;
  float4 sum{};
  for (int32_t range = 0; range < params.num_ranges; ++range) {
    const float4 share = __ldcs(reinterpret_cast<const float4*>(params.shares) + range * num_vectors + vector);
    sum.x += share.x, sum.y += share.y, sum.z += share.z, sum.w += share.w;
  }
  const int64_t row = vector / vectors, query = row / params.heads;
  const int64_t at = query * params.dq_row_stride + (row - query * params.heads) * params.dq_head_stride +
                     (vector - row * vectors) * 4;
  if (params.dq_type == GradType::kFloat32) {
    auto* to = reinterpret_cast<float2*>(static_cast<float*>(params.dq) + at);
    to[0] = {sum.x, sum.y};
    to[1] = {sum.z, sum.w};
  } else {
    *reinterpret_cast<uint2*>(static_cast<Element*>(params.dq) + at) = {pack_pair<Element>(sum.x, sum.y),
                                                                        pack_pair<Element>(sum.z, sum.w)};
  }
}

}  // namespace tangram::sm90::token_backward
