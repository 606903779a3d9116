// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Kernels that build the image of chosen blocks for kernels that gather, one after the other:
//
//   clear_lists    warps       clears the bitmap
//   mark_choices   threads     sets the bits of chosen blocks
//   count_choices  warps       counts entries of each line or column, and the cost of its tiles
//   place_choices  one block   places of the lines' groups; errors of the mask
//   fill_lists     warps       writes groups of keys, runs, and work tiles in scheduled order
//
// What they do is in src/schedule/builder/block_lists.hpp, and the same on the host.
#pragma once

#include "attn/gpu/builder/params.hpp"
#include "attn/gpu/builder/teams.cuh"
#include "schedule/builder/block_lists.hpp"

namespace tangram::gpu::builder {

/// Threads of one of many thread blocks, whose warps work alone.
inline constexpr int kListThreads = 256;

__device__ __forceinline__ int64_t list_warp() { return int64_t{blockIdx.x} * (kListThreads / 32) + threadIdx.x / 32; }

__global__ void __launch_bounds__(kListThreads) clear_lists_kernel(const __grid_constant__ BlockListParams params) {
  schedule::builder::clear_lists(WarpTeam(), params.build, params.lists, static_cast<int32_t>(list_warp() * 32),
                                 static_cast<int32_t>(gridDim.x) * kListThreads);
}

__global__ void __launch_bounds__(kListThreads) mark_choices_kernel(const __grid_constant__ BlockListParams params) {
  const int64_t entry = int64_t{blockIdx.x} * kListThreads + threadIdx.x;
  const int64_t count = int64_t{params.lists.num_lines} * params.lists.width;
  if (entry < count) schedule::builder::mark_choice(WarpTeam(), params.build, params.lists, entry);
}

__global__ void __launch_bounds__(kListThreads) count_choices_kernel(const __grid_constant__ BlockListParams params) {
  schedule::builder::count_choice(WarpTeam(), params.build, params.lists, list_warp());
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) place_choices_kernel(const __grid_constant__ BlockListParams params) {
  __shared__ int64_t words[32];
  schedule::builder::place_choices(BlockTeam<kThreads>(words), params.build, params.lists);
}

__global__ void __launch_bounds__(kListThreads) fill_lists_kernel(const __grid_constant__ BlockListParams params) {
  const int64_t part = list_warp();
  if (part >= schedule::builder::num_block_parts(params.build, params.lists)) return;
  schedule::builder::fill_block_part(WarpTeam(), params.build, params.lists, part);
}

}  // namespace tangram::gpu::builder
