// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/builder/kernels.cuh"
#include "attn/gpu/builder/launch.hpp"
#include "cuda/launch_kernel.hpp"

namespace tangram::gpu::builder {

using cuda::launch_kernel;

namespace {

constexpr bool kDependent = false;
constexpr int64_t kClearingBlocks = 132;  // as many as there are multiprocessors, about

int64_t blocks_of_warps(int64_t warps) { return (warps + kWarpThreads / 32 - 1) / (kWarpThreads / 32); }

/// Enqueues the kernels that follow once there are slices and tiles.
void launch_rest(const TurnBuild& build, cudaStream_t stream) {
  const int64_t key_tiles = build.passes[1].max_tiles, tiles = int64_t{build.passes[0].max_tiles} + key_tiles;
  const auto launch = [&](void (*kernel)(TurnBuild), int64_t warps, const char* what) {
    if (build.turns.max_segments == 0 || warps == 0) return;
    launch_kernel(kernel, build, blocks_of_warps(warps), kWarpThreads, 0, kDependent, stream, what);
  };
  const Build& without_turns = build;
  launch_kernel(count_tiles_kernel, without_turns, blocks_of_warps(tiles), kWarpThreads, 0, kDependent, stream,
                "count_tiles launch");
  launch_kernel(place_lists_kernel<kBlockThreads>, without_turns, 1, kBlockThreads, 0, kDependent, stream,
                "place_lists launch");
  launch(order_runs_kernel, key_tiles, "order_runs launch");
  launch(count_turns_kernel, build.max_q_tiles, "count_turns launch");
  if (build.turns.max_segments > 0) {
    launch_kernel(place_turns_kernel<kBlockThreads>, build, 1, kBlockThreads, 0, kDependent, stream,
                  "place_turns launch");
  }
  launch_kernel(fill_image_kernel, without_turns, blocks_of_warps(schedule::builder::num_parts(build)), kWarpThreads, 0,
                kDependent, stream, "fill_image launch");
  launch(list_turns_kernel, build.max_q_tiles, "list_turns launch");
  launch(fill_turns_kernel, key_tiles, "fill_turns launch");
}

}  // namespace

void launch_build(const TurnBuild& build, const Documents& documents, cudaStream_t stream) {
  launch_kernel(begin_documents_kernel<kBlockThreads>, {build, documents}, 1, kBlockThreads, 0, kDependent, stream,
                "begin_documents launch");
  launch_rest(build, stream);
}

void launch_build(const TurnBuild& build, const Blocks& blocks, cudaStream_t stream) {
  const BlockParams params{build, blocks};
  const int64_t lines = int64_t{blocks.lines[0].num_lines} + blocks.lines[1].num_lines;
  const int64_t entries = int64_t{blocks.lines[0].num_lines} * blocks.width;
  const auto launch = [&](void (*kernel)(BlockParams), int64_t count, const char* what) {
    launch_kernel(kernel, params, count, kWarpThreads, 0, kDependent, stream, what);
  };
  launch(clear_blocks_kernel, kClearingBlocks, "clear_blocks launch");
  if (entries > 0) launch(mark_blocks_kernel, (entries + kWarpThreads - 1) / kWarpThreads, "mark_blocks launch");
  if (lines > 0) launch(count_lines_kernel, blocks_of_warps(lines), "count_lines launch");
  launch_kernel(begin_blocks_kernel<kBlockThreads>, params, 1, kBlockThreads, 0, kDependent, stream,
                "begin_blocks launch");
  if (lines > 0) launch(slice_lines_kernel, blocks_of_warps(lines), "slice_lines launch");
  launch_rest(build, stream);
}

void launch_build(const SortBuild& build, const Ranges& ranges, cudaStream_t stream) {
  const RangeParams params{build, ranges};
  const auto launch = [&](void (*kernel)(RangeParams), int64_t count, int threads, const char* what) {
    if (count > 0) launch_kernel(kernel, params, count, threads, 0, kDependent, stream, what);
  };
  const int64_t by_threads = (int64_t{ranges.count} + kWarpThreads - 1) / kWarpThreads;
  launch(begin_ranges_kernel<kBlockThreads>, 1, kBlockThreads, "begin_ranges launch");
  launch(read_ranges_kernel, by_threads, kWarpThreads, "read_ranges launch");
  launch(place_buckets_kernel<kBlockThreads>, 1, kBlockThreads, "place_buckets launch");
  launch(list_ranges_kernel, by_threads, kWarpThreads, "list_ranges launch");
  launch(sort_slices_kernel, blocks_of_warps(ranges.count), kWarpThreads, "sort_slices launch");
  launch(check_slices_kernel, blocks_of_warps(int64_t{2} * ranges.count), kWarpThreads, "check_slices launch");
  launch(finish_ranges_kernel<kBlockThreads>, 1, kBlockThreads, "finish_ranges launch");
  launch_rest(build, stream);
}

}  // namespace tangram::gpu::builder
