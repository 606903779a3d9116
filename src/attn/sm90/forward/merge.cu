// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Merges the parts of query tiles: out is the mean of the parts' rows, weighted by exp(lse), and lse their logsumexp.

#include "attn/sm90/forward/epilogue.cuh"
#include "attn/sm90/forward/launch.hpp"
#include "cuda/check.hpp"
#include "cuda/load_kernel.hpp"

namespace tangram::sm90 {
namespace {

constexpr int kMergeThreads = 128;

/// One (row, head) by kLanes threads of a warp, four columns each, and with kRounds > 1 as many further on. The parts
/// are added in their order, so that the result does not depend on who has computed them when. `head_dim` is that of v
/// and out; a constant where it is known when compiling.
template <typename Element, int kLanes, int kRounds>
__device__ __forceinline__ void merge_rows(const ForwardParams& params, const MergeParams& merge, int head_dim) {
  const int32_t index = static_cast<int32_t>(blockIdx.x * kMergeThreads + threadIdx.x) / kLanes;
  const int column = static_cast<int>(threadIdx.x) % kLanes * 4;
  const int32_t in_tile = index / merge.num_heads;
  const int32_t first_head = merge.first_heads == nullptr ? 0 : merge.first_heads[blockIdx.y];
  const int32_t head = first_head + index - in_tile * merge.num_heads;
  const schedule::TileParts parts = merge.tiles[blockIdx.y];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (in_tile >= parts.num_rows) return;
  const int64_t row = int64_t{parts.row_begin} + in_tile;
  const int32_t stride = parts.num_rows * params.num_heads_q;
  const int64_t first = (int64_t{parts.first_row} + in_tile) * params.num_heads_q + head;
  const float* lses = merge.lse + first;
  const float* rows = merge.out + first * head_dim + column;
  const auto is_inside = [&](int round) { return column + round * kLanes * 4 < head_dim; };

  float largest = minus_infinity();
  for (int32_t p = 0; p < parts.num_parts; ++p) largest = fmaxf(largest, __ldcg(lses + int64_t{p} * stride));
  float total = 0.0f;
  float4 sums[kRounds]{};
#pragma unroll 4
  for (int32_t p = 0; p < parts.num_parts; ++p) {
    const float lse = __ldcg(lses + int64_t{p} * stride);
    float4 x[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const float* from = rows + int64_t{p} * stride * head_dim + round * kLanes * 4;
      if (is_inside(round)) x[round] = __ldcg(reinterpret_cast<const float4*>(from));
    }
    const float weight = lse == minus_infinity() ? 0.0f : expf(lse - largest);
    total += weight;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!is_inside(round)) continue;
      float4& sum = sums[round];
      sum.x += weight * x[round].x, sum.y += weight * x[round].y, sum.z += weight * x[round].z,
          sum.w += weight * x[round].w;
    }
  }
  float lse = minus_infinity(), factor = 0.0f, previous_factor = 0.0f;
  if (total != 0.0f) {  // NaN, too
    lse = largest + logf(total);
    factor = 1.0f / total;
  }
  if (params.sink != nullptr || params.accumulate) {
    lse = merged_lse(params, lse, row, head, factor, previous_factor);
    // All lanes of the row have read what the first one overwrites.
    __syncwarp(kLanes == 32 ? 0xffffffffu : 0xffffu << (threadIdx.x & 16));
  }
  if (column == 0) params.lse[row * params.lse_row_stride + head] = lse;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (!is_inside(round)) continue;
    const float4 sum = sums[round];
    const int64_t at = row * params.out_row_stride + head * params.out_head_stride + column + round * kLanes * 4;
    const float4 value{sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
    if (params.out_type == OutType::kInput) {
      *reinterpret_cast<uint2*>(static_cast<Element*>(params.out) + at) = {pack_pair<Element>(value.x, value.y),
                                                                           pack_pair<Element>(value.z, value.w)};
      continue;
    }
    float4* place = reinterpret_cast<float4*>(static_cast<float*>(params.out) + at);
    float4 previous{};
    if (previous_factor != 0.0f) previous = *place;
    *place = {value.x + previous.x * previous_factor, value.y + previous.y * previous_factor,
              value.z + previous.z * previous_factor, value.w + previous.w * previous_factor};
  }
}

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ ForwardParams params, const __grid_constant__ MergeParams merge) {
  merge_rows<Element, kHeadDim / 4, 1>(params, merge, kHeadDim);
}

/// Combine kernel for any head_dim of v: a warp for each (row, head).
template <typename Element>
__global__ void __launch_bounds__(kMergeThreads)
    merge_any_dim_kernel(const __grid_constant__ ForwardParams params, const __grid_constant__ MergeParams merge) {
  merge_rows<Element, 32, 2>(params, merge, params.head_dim_v);
}

struct MergeKernel {
  void (*kernel)(ForwardParams, MergeParams);
  void (*load)();
  int lanes;  ///< for each (row, head)
};

template <typename Element>
MergeKernel merge_kernel_of(int head_dim, int head_dim_v) {
  MergeKernel found{merge_any_dim_kernel<Element>, cuda::load_kernel<merge_any_dim_kernel<Element>>, 32};
  with_exact_class(head_dim, head_dim_v, [&]<int kHeadDim> {
    found = {merge_kernel<Element, kHeadDim>, cuda::load_kernel<merge_kernel<Element, kHeadDim>>, kHeadDim / 4};
  });
  return found;
}

MergeKernel merge_kernel_of(bool half, int head_dim, int head_dim_v) {
  return half ? merge_kernel_of<__half>(head_dim, head_dim_v) : merge_kernel_of<__nv_bfloat16>(head_dim, head_dim_v);
}

}  // namespace

void load_merge(bool half, int head_dim, int head_dim_v) { merge_kernel_of(half, head_dim, head_dim_v).load(); }

void launch_merge(const ForwardVariant& variant, const ForwardParams& params, const MergeParams& merge,
                  cudaStream_t stream) {
  const MergeKernel kernel = merge_kernel_of(variant.half, variant.head_dim, variant.head_dim_v);
  const int64_t threads = int64_t{merge.tile_rows} * merge.num_heads * kernel.lanes;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((threads + kMergeThreads - 1) / kMergeThreads),
                        static_cast<unsigned>(merge.num_tiles));
  config.blockDim = dim3(kMergeThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda::check(cudaLaunchKernelEx(&config, kernel.kernel, params, merge), "sm90 forward: merge kernel launch");
}

}  // namespace tangram::sm90
