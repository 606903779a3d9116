// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Kernels that build the image of a mask in device memory, one after the other:
//
//   begin_documents  one block   slices of packed documents, and where tiles begin
//   count_tiles      warps       what each tile of both passes sees: pieces by keys, how many runs
//   place_lists      one block   where each tile writes; how items of the backward pass are dealt
//   fill_image       warps       runs, intervals, items, query tiles
//
// What they do is in src/schedule/builder, and the same on the host. None lets its successor start early: kernels that
// read lists do so before they wait.
#pragma once

#include "attn/sm90/builder/params.hpp"
#include "attn/sm90/builder/teams.cuh"
#include "schedule/builder/deal_items.hpp"
#include "schedule/builder/fill_image.hpp"
#include "schedule/builder/pack_tile.hpp"

namespace tangram::sm90::builder {

/// Of a block that works alone.
inline constexpr int kBlockThreads = 1024;
/// Of one of many, whose warps work alone.
inline constexpr int kWarpThreads = 256;

__device__ __forceinline__ int32_t warp_of_grid() {
  return static_cast<int32_t>(blockIdx.x * (kWarpThreads / 32) + threadIdx.x / 32);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) begin_documents_kernel(const __grid_constant__ DocumentParams params) {
  __shared__ int64_t words[32];
  schedule::builder::begin_documents(BlockTeam<kThreads>(words), params.build, params.documents);
}

__global__ void __launch_bounds__(kWarpThreads) count_tiles_kernel(const __grid_constant__ Build build) {
  const int32_t warp = warp_of_grid(), forward = build.passes[0].max_tiles;
  const int pass = warp < forward ? 0 : 1;
  schedule::builder::count_tile(WarpTeam(), build, pass, warp - pass * forward);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) place_lists_kernel(const __grid_constant__ Build build) {
  __shared__ int64_t words[32];
  schedule::builder::place_lists(BlockTeam<kThreads>(words), build);
}

__global__ void __launch_bounds__(kWarpThreads) fill_image_kernel(const __grid_constant__ Build build) {
  const int32_t warp = warp_of_grid();
  if (warp < schedule::builder::num_parts(build)) schedule::builder::fill_part(WarpTeam(), build, warp);
}

}  // namespace tangram::sm90::builder
