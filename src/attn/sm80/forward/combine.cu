// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Combines the parts of query tiles: out is the mean of the parts' rows, weighted by exp(lse), and lse their logsumexp.

#include "attn/sm80/forward/epilogue.cuh"
#include "attn/sm80/launch.hpp"
#include "cuda/check.hpp"
#include "cuda/load_kernel.hpp"

namespace tangram::sm80 {
namespace {

constexpr int kCombineThreads = 128;

/// A warp for each (row, head), two columns a lane and 64 further on. Parts are added in their order, so that the
/// result does not depend on who has computed them when.
template <typename Element>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ ForwardParams params, const __grid_constant__ CombineParams combine) {
  constexpr int kRounds = 4;
  const auto index = static_cast<int32_t>(blockIdx.x * kCombineThreads + threadIdx.x) / 32;
  const auto column = static_cast<int32_t>(threadIdx.x % 32 * 2);
  const int32_t in_tile = index / combine.num_heads;
  const int32_t first_head = combine.first_heads == nullptr ? 0 : combine.first_heads[blockIdx.y];
  const int32_t head = first_head + index - in_tile * combine.num_heads;
  const schedule::TileParts parts = combine.tiles[blockIdx.y];
  if (in_tile >= parts.num_rows) return;
  const int64_t row = int64_t{parts.row_begin} + in_tile;
  const int64_t stride = int64_t{parts.num_rows} * params.num_heads_q;
  const int64_t first = (int64_t{parts.first_row} + in_tile) * params.num_heads_q + head;
  float largest = minus_infinity();
  for (int32_t p = 0; p < parts.num_parts; ++p) largest = fmaxf(largest, combine.lse[first + p * stride]);
  float total = 0.0f;
  float2 sums[kRounds]{};
  for (int32_t p = 0; p < parts.num_parts; ++p) {
    const float lse = combine.lse[first + p * stride];
    const float weight = lse == minus_infinity() ? 0.0f : expf(lse - largest);
    total += weight;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int32_t at = column + round * 64;
      if (at >= params.head_dim_v) continue;
      const float2 x = *reinterpret_cast<const float2*>(combine.out + (first + p * stride) * params.head_dim_v + at);
      sums[round].x += weight * x.x;
      sums[round].y += weight * x.y;
    }
  }
  float lse = minus_infinity();
  RowFactors factors{0.0f, 0.0f};
  if (total != 0.0f) {  // NaN, too
    lse = largest + logf(total);
    factors.accumulated = 1.0f / total;
  }
  if (params.sink != nullptr || params.accumulate) {
    lse = merged_lse(params, lse, row, head, factors);
    __syncwarp();  // all lanes have read what the first one overwrites
  }
  if (column == 0) params.lse[row * params.num_heads_q + head] = lse;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int32_t in_row = column + round * 64;
    if (in_row >= params.head_dim_v) continue;
    const int64_t at = row * params.out_row_stride + head * params.out_head_stride + in_row;
    float2 value{sums[round].x * factors.accumulated, sums[round].y * factors.accumulated};
    if (params.out_type == OutType::kInput) {
      *reinterpret_cast<uint32_t*>(static_cast<Element*>(params.out) + at) = ptx::pack_pair<Element>(value.x, value.y);
      continue;
    }
    float2* const place = reinterpret_cast<float2*>(static_cast<float*>(params.out) + at);
    if (factors.previous != 0.0f) {
      value.x += place->x * factors.previous;
      value.y += place->y * factors.previous;
    }
    *place = value;
  }
}

__global__ void fill_kernel(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = minus_infinity();
}

}  // namespace

void load_combine(bool half) {
  (half ? cuda::load_kernel<combine_kernel<__half>> : cuda::load_kernel<combine_kernel<__nv_bfloat16>>)();
}

void launch_combine(bool half, const ForwardParams& params, const CombineParams& combine, cudaStream_t stream) {
  const int64_t threads = int64_t{combine.tile_rows} * combine.num_heads * 32;
  const dim3 grid(static_cast<unsigned>((threads + kCombineThreads - 1) / kCombineThreads),
                  static_cast<unsigned>(combine.num_tiles));
  (half ? combine_kernel<__half> : combine_kernel<__nv_bfloat16>)<<<grid, kCombineThreads, 0, stream>>>(params,
                                                                                                        combine);
  cuda::check(cudaGetLastError(), "sm80 forward: combine kernel launch");
}

void fill_minus_infinity(float* values, int count, cudaStream_t stream) {
  fill_kernel<<<(count + 127) / 128, 128, 0, stream>>>(values, count);
  cuda::check(cudaGetLastError(), "sm80 forward: fill kernel launch");
}

}  // namespace tangram::sm80
