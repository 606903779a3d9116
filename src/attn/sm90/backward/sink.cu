// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Gradient of a sink: a key without value, so that dP is 0 and dS = -P * delta. Sums run in a fixed order.

#include "attn/sm90/backward/launch.hpp"
#include "attn/sm90/backward/tile_place.cuh"
#include "attn/sm90/backward/traits.cuh"
#include "cuda/check.hpp"
#include "cuda/load_kernel.hpp"

namespace tangram::sm90::backward {
namespace {

constexpr int kSinkThreads = 256;

__device__ float element(const void* data, int64_t at, bool float32, bool half) {
  if (float32) return static_cast<const float*>(data)[at];
  if (half) return __half2float(static_cast<const __half*>(data)[at]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

/// Gradient part of a row that sees no key in this call. If it sees no key at all, out is zero and dout may hold
/// anything.
__device__ float uncovered_gradient(const SinkParams& params, float sink, int head, int64_t row) {
  float delta = params.delta != nullptr ? params.delta[row * params.num_heads_q + head] : 0.0f;
  for (int d = 0; params.delta == nullptr && d < params.head_dim_v; ++d) {
    const float out = element(params.out, row * params.out_row_stride + head * params.out_head_stride + d,
                              params.out_float32, params.half);
    if (out == 0.0f) continue;
    delta += out * element(params.dout, row * params.dout_row_stride + head * params.dout_head_stride + d, false,
                           params.half);
  }
  return -exp2f((sink - params.lse[row * params.num_heads_q + head]) * kLog2e) * delta;
}

__device__ float sink_gradient(const SinkParams& params, float sink, int head, const TilePlace& place, int in_tile) {
  if (params.covered_queries && !(params.covered_queries[place.tile] >> in_tile & 1)) {
    return uncovered_gradient(params, sink, head, int64_t{params.q_tiles[place.tile].row_begin} + in_tile);
  }
  const float* stats = params.stats + place.accum_tile * kStatsFloats;
  const float lse_log2 = sum_of_three(*reinterpret_cast<const uint2*>(stats + in_tile * 4)) * params.lse_log2_factor;
  const float delta = -sum_of_three(*reinterpret_cast<const uint2*>(stats + in_tile * 4 + 2));
  return -exp2f(sink * kLog2e - lse_log2) * delta;
}

/// The tile of the head's mask that holds `row`. Empty ones begin behind all rows.
__device__ TilePlace place_of(const SinkParams& params, int head, int64_t row) {
  const int first = tile_place(params, head, 0).tile;
  int begin = 0, end = params.num_q_tiles;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (params.q_tiles[first + middle].row_begin <= row ? begin : end) = middle;
  }
  return tile_place(params, head, begin);
}

/// One CTA for each (sink, head).
__global__ void __launch_bounds__(kSinkThreads) shared_sink_kernel(const SinkParams params) {
  __shared__ float sums[kSinkThreads];
  const int head = static_cast<int>(blockIdx.x) % params.num_heads_q;
  const float sink = params.sink[blockIdx.x];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < int64_t{params.num_q_tiles} * kBlockM; i += kSinkThreads) {
    const int tile = static_cast<int>(i / kBlockM), in_tile = static_cast<int>(i % kBlockM);
    const TilePlace place = tile_place(params, head, tile);
    const QueryTile rows = params.q_tiles[place.tile];
    if (in_tile < rows.row_end - rows.row_begin) sum += sink_gradient(params, sink, head, place, in_tile);
  }
  sums[threadIdx.x] = sum;
  for (int half = kSinkThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) params.dsink[blockIdx.x] = sums[0];
}

__global__ void __launch_bounds__(kSinkThreads) row_sink_kernel(const SinkParams params) {
  const int64_t per_row = int64_t{params.num_sinks} * params.num_heads_q;
  const int64_t i = int64_t{blockIdx.x} * kSinkThreads + threadIdx.x;
  if (i >= params.seqlen_q * per_row) return;
  const int64_t row = i / per_row;
  const int head = static_cast<int>(i % params.num_heads_q);
  const TilePlace place = place_of(params, head, row);
  const int in_tile = static_cast<int>(row - params.q_tiles[place.tile].row_begin);
  params.dsink[i] = sink_gradient(params, params.sink[i], head, place, in_tile);
}

}  // namespace

void load_sink() {
  cuda::load_kernel<shared_sink_kernel>();
  cuda::load_kernel<row_sink_kernel>();
}

void launch_sink(const SinkParams& params, cudaStream_t stream) {
  const int64_t sinks = int64_t{params.num_sinks} * params.num_heads_q;
  if (!params.per_row) {
    shared_sink_kernel<<<static_cast<unsigned>(sinks), kSinkThreads, 0, stream>>>(params);
  } else if (params.seqlen_q > 0) {
    const int64_t ctas = (params.seqlen_q * sinks + kSinkThreads - 1) / kSinkThreads;
    row_sink_kernel<<<static_cast<unsigned>(ctas), kSinkThreads, 0, stream>>>(params);
  }
  cuda::check(cudaGetLastError(), "sm90 backward: sink kernel launch");
}

}  // namespace tangram::sm90::backward
