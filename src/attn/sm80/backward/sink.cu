// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Gradient of a sink: a key without value, so that dP is 0 and dS = -P * delta. Sums run in a fixed order.

#include "attn/sm80/backward/pre_posts.cuh"
#include "attn/sm80/launch.hpp"
#include "cuda/check.hpp"
#include "cuda/load_kernel.hpp"

namespace tangram::sm80 {
namespace {

using backward::kLog2e;
using backward::PrePostParams;
using backward::QueryTile;
using backward::RowStatistics;
using backward::tile_place;
using backward::TilePlace;

constexpr int kSinkThreads = 256;

/// Statistics of a row that sees no key in this call. If it sees no key at all, out is zero and dout may hold anything.
template <typename Element>
__device__ RowStatistics statistics_of(const SinkParams& params, const PrePostParams& call, int head, int64_t row) {
  float delta = call.delta != nullptr ? call.delta[row * call.num_heads_q + head] : 0.0f;
  for (int d = 0; call.delta == nullptr && d < call.head_dim_v; d += 2) {
    const float2 out = backward::load_pair<Element>(
        call.out, row * call.out_row_stride + head * call.out_head_stride + d, call.out_float32);
    const float2 dout =
        backward::load_pair<Element>(call.dout, row * call.dout_row_stride + head * call.dout_head_stride + d, false);
    if (out.x != 0.0f) delta += out.x * dout.x;
    if (out.y != 0.0f) delta += out.y * dout.y;
  }
  return {params.lse[row * call.num_heads_q + head] * kLog2e, delta};
}

template <typename Element>
__device__ float sink_gradient(const SinkParams& params, const PrePostParams& call, float sink, int head,
                               const TilePlace& place, int in_tile) {
  const bool covered = !call.covered_queries || (call.covered_queries[place.tile] >> in_tile & 1);
  const RowStatistics row =
      covered ? call.stats[place.accum_tile * kStepQueries + in_tile]
              : statistics_of<Element>(params, call, head, int64_t{call.q_tiles[place.tile].row_begin} + in_tile);
  return -exp2f(sink * kLog2e - row.lse_log2) * row.delta;
}

/// The tile of the head's mask that holds `row`. Empty ones begin behind all rows.
__device__ TilePlace place_of(const PrePostParams& call, int head, int64_t row) {
  const int first = tile_place(call, head, 0).tile;
  int begin = 0, end = call.num_q_tiles;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (call.q_tiles[first + middle].row_begin <= row ? begin : end) = middle;
  }
  return tile_place(call, head, begin);
}

/// One CTA for each (sink, head).
template <typename Element>
__global__ void __launch_bounds__(kSinkThreads)
    shared_sink_kernel(const __grid_constant__ SinkParams params, const __grid_constant__ PrePostParams call) {
  __shared__ float sums[kSinkThreads];
  const int head = static_cast<int>(blockIdx.x) % call.num_heads_q;
  const float sink = params.sink[blockIdx.x];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < int64_t{call.num_q_tiles} * kStepQueries; i += kSinkThreads) {
    const int tile = static_cast<int>(i / kStepQueries), in_tile = static_cast<int>(i % kStepQueries);
    const TilePlace place = tile_place(call, head, tile);
    const QueryTile rows = call.q_tiles[place.tile];
    if (in_tile < rows.row_end - rows.row_begin) {
      sum += sink_gradient<Element>(params, call, sink, head, place, in_tile);
    }
  }
  sums[threadIdx.x] = sum;
  for (int half = kSinkThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) params.dsink[blockIdx.x] = sums[0];
}

template <typename Element>
__global__ void __launch_bounds__(kSinkThreads)
    row_sink_kernel(const __grid_constant__ SinkParams params, const __grid_constant__ PrePostParams call) {
  const int64_t per_row = int64_t{params.num_sinks} * call.num_heads_q;
  const int64_t i = int64_t{blockIdx.x} * kSinkThreads + threadIdx.x;
  if (i >= params.seqlen_q * per_row) return;
  const int64_t row = i / per_row;
  const int head = static_cast<int>(i % call.num_heads_q);
  const TilePlace place = place_of(call, head, row);
  const int in_tile = static_cast<int>(row - call.q_tiles[place.tile].row_begin);
  params.dsink[i] = sink_gradient<Element>(params, call, params.sink[i], head, place, in_tile);
}

template <typename Element>
void launch(const SinkParams& params, const PrePostParams& call, cudaStream_t stream) {
  const int64_t sinks = int64_t{params.num_sinks} * call.num_heads_q;
  if (!params.per_row) {
    shared_sink_kernel<Element><<<static_cast<unsigned>(sinks), kSinkThreads, 0, stream>>>(params, call);
  } else if (params.seqlen_q > 0) {
    const int64_t ctas = (params.seqlen_q * sinks + kSinkThreads - 1) / kSinkThreads;
    row_sink_kernel<Element><<<static_cast<unsigned>(ctas), kSinkThreads, 0, stream>>>(params, call);
  }
  cuda::check(cudaGetLastError(), "sm80 backward: sink kernel launch");
}

/// Calls run.template operator()<Element>() for the elements of a dtype.
template <typename Run>
void with_element(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kFloat32: return run.template operator()<float>();
    case DType::kFloat16: return run.template operator()<__half>();
    case DType::kBFloat16: return run.template operator()<__nv_bfloat16>();
  }
}

}  // namespace

void load_sink(DType dtype) {
  with_element(dtype, []<typename Element> {
    cuda::load_kernel<shared_sink_kernel<Element>>(), cuda::load_kernel<row_sink_kernel<Element>>();
  });
}

void launch_sink(const SinkParams& params, const backward::PrePostParams& pre_post, cudaStream_t stream) {
  with_element(params.dtype, [&]<typename Element> { launch<Element>(params, pre_post, stream); });
}

}  // namespace tangram::sm80
