// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Kernels that build the image of a mask in device memory, one after the other:
//
//   begin_documents  one block   slices of packed documents, and where tiles begin
//
//   clear_blocks     warps       block-sparse masks: clears the bitmap
//   mark_blocks      threads     sets the bits of chosen blocks
//   count_lines      warps       counts the runs of rows and columns
//   begin_blocks     one block   places of slices, begins of tiles
//   slice_lines      warps       writes the slices
//
//   begin_ranges     one block   typed ranges: clears the buckets
//   read_ranges      threads     makes slices, counts them by bucket
//   place_buckets    one block   places of the buckets' lists
//   list_ranges      threads     lists slices by bucket
//   sort_slices      warps       sorts slices by row and by key
//   check_slices     warps       finds overlaps, and rows at which the mask falls apart
//   finish_ranges    one block   begins of tiles
//
//   count_tiles      warps       all masks: slices and runs that each tile of both passes sees
//   place_lists      one block   places of each tile's output; schedule of backward work tiles
//   fill_image       warps       writes runs, intervals, work tiles, query tiles
//
//   order_runs       warps       deterministic calls, before fill_image: runs in scheduled order
//   count_turns      warps       segments of turns of each run
//   place_turns      one block   places of the segments
//   list_turns       warps       deterministic calls, after fill_image: lists the segments
//   fill_turns       warps       sorts the segments by walk
//
// What they do is in src/schedule/builder, and the same on the host. None lets its successor start early: kernels that
// read lists do so before they wait.
#pragma once

#include "attn/gpu/builder/params.hpp"
#include "attn/gpu/builder/teams.cuh"
#include "schedule/builder/blocks.hpp"
#include "schedule/builder/emit_work_tiles.hpp"
#include "schedule/builder/fill_image.hpp"
#include "schedule/builder/pack_tile.hpp"
#include "schedule/builder/ranges.hpp"
#include "schedule/builder/turns.hpp"

namespace tangram::gpu::builder {

/// Threads of a thread block that works alone.
inline constexpr int kBlockThreads = 1024;
/// Threads of one of many thread blocks, whose warps work alone.
inline constexpr int kWarpThreads = 256;

__device__ __forceinline__ int32_t warp_of_grid() {
  return static_cast<int32_t>(blockIdx.x * (kWarpThreads / 32) + threadIdx.x / 32);
}

__device__ __forceinline__ int32_t thread_of_grid() {
  return static_cast<int32_t>(blockIdx.x * kWarpThreads + threadIdx.x);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) begin_documents_kernel(const __grid_constant__ DocumentParams params) {
  __shared__ int64_t words[32];
  schedule::builder::begin_documents(BlockTeam<kThreads>(words), params.build, params.documents);
}

__global__ void __launch_bounds__(kWarpThreads) clear_blocks_kernel(const __grid_constant__ BlockParams params) {
  schedule::builder::clear_blocks(WarpTeam(), params.build, params.blocks, warp_of_grid() * 32,
                                  static_cast<int32_t>(gridDim.x) * kWarpThreads);
}

__global__ void __launch_bounds__(kWarpThreads) mark_blocks_kernel(const __grid_constant__ BlockParams params) {
  const int64_t entry = int64_t{blockIdx.x} * kWarpThreads + threadIdx.x;
  const int64_t count = int64_t{params.blocks.lines[0].num_lines} * params.blocks.width;
  if (entry < count) schedule::builder::mark_block(WarpTeam(), params.build, params.blocks, entry);
}

__global__ void __launch_bounds__(kWarpThreads) count_lines_kernel(const __grid_constant__ BlockParams params) {
  const int32_t line = warp_of_grid(), of_queries = params.blocks.lines[0].num_lines;
  const int side = line < of_queries ? 0 : 1;
  if (line >= of_queries + params.blocks.lines[1].num_lines) return;
  schedule::builder::count_line(WarpTeam(), params.blocks, side, line - side * of_queries);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) begin_blocks_kernel(const __grid_constant__ BlockParams params) {
  __shared__ int64_t words[32];
  schedule::builder::begin_blocks(BlockTeam<kThreads>(words), params.build, params.blocks);
}

__global__ void __launch_bounds__(kWarpThreads) slice_lines_kernel(const __grid_constant__ BlockParams params) {
  const int32_t line = warp_of_grid(), of_queries = params.blocks.lines[0].num_lines;
  const int side = line < of_queries ? 0 : 1;
  if (line >= of_queries + params.blocks.lines[1].num_lines) return;
  schedule::builder::slice_line(WarpTeam(), params.build, params.blocks, side, line - side * of_queries);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) begin_ranges_kernel(const __grid_constant__ RangeParams params) {
  __shared__ int64_t words[32];
  schedule::builder::begin_ranges(BlockTeam<kThreads>(words), params.build);
}

__global__ void __launch_bounds__(kWarpThreads) read_ranges_kernel(const __grid_constant__ RangeParams params) {
  const int32_t i = thread_of_grid();
  if (i < params.ranges.count) schedule::builder::read_range(WarpTeam(), params.build, params.ranges, i);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) place_buckets_kernel(const __grid_constant__ RangeParams params) {
  __shared__ int64_t words[32];
  schedule::builder::place_buckets(BlockTeam<kThreads>(words), params.build);
}

__global__ void __launch_bounds__(kWarpThreads) list_ranges_kernel(const __grid_constant__ RangeParams params) {
  const int32_t i = thread_of_grid();
  if (i < params.ranges.count) schedule::builder::list_range(WarpTeam(), params.build, i);
}

__global__ void __launch_bounds__(kWarpThreads) sort_slices_kernel(const __grid_constant__ RangeParams params) {
  const int32_t i = warp_of_grid();
  if (i < params.ranges.count) schedule::builder::sort_slice(WarpTeam(), params.build, i);
}

__global__ void __launch_bounds__(kWarpThreads) check_slices_kernel(const __grid_constant__ RangeParams params) {
  const int32_t warp = warp_of_grid();
  schedule::builder::check_slice(WarpTeam(), params.build, warp % 2, warp / 2);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) finish_ranges_kernel(const __grid_constant__ RangeParams params) {
  __shared__ int64_t words[32];
  schedule::builder::finish_ranges(BlockTeam<kThreads>(words), params.build, params.ranges);
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

__global__ void __launch_bounds__(kWarpThreads) order_runs_kernel(const __grid_constant__ TurnBuild build) {
  schedule::builder::order_runs(WarpTeam(), build, warp_of_grid());
}

__global__ void __launch_bounds__(kWarpThreads) count_turns_kernel(const __grid_constant__ TurnBuild build) {
  schedule::builder::count_turns(WarpTeam(), build, warp_of_grid());
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1) place_turns_kernel(const __grid_constant__ TurnBuild build) {
  __shared__ int64_t words[32];
  schedule::builder::place_turns(BlockTeam<kThreads>(words), build);
}

__global__ void __launch_bounds__(kWarpThreads) list_turns_kernel(const __grid_constant__ TurnBuild build) {
  schedule::builder::list_turns(WarpTeam(), build, warp_of_grid());
}

__global__ void __launch_bounds__(kWarpThreads) fill_turns_kernel(const __grid_constant__ TurnBuild build) {
  schedule::builder::fill_turns(WarpTeam(), build, warp_of_grid());
}

}  // namespace tangram::gpu::builder
