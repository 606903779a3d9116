// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/builder/block_kernels.cuh"
#include "attn/gpu/builder/launch.hpp"
#include "cuda/launch_kernel.hpp"

namespace tangram::gpu::builder {

using cuda::launch_kernel;

void launch_build(const BlockBuild& build, const BlockLists& lists, cudaStream_t stream) {
  constexpr int64_t kClearingBlocks = 132;  // as many as there are multiprocessors, about
  constexpr int kPlacingThreads = 1024, kWarps = kListThreads / 32;
  const BlockListParams params{build, lists};
  const auto launch = [&](void (*kernel)(BlockListParams), int64_t blocks, int threads, const char* what) {
    if (blocks > 0) launch_kernel(kernel, params, blocks, threads, 0, false, stream, what);
  };
  const int64_t entries = int64_t{lists.num_lines} * lists.width;
  launch(clear_lists_kernel, kClearingBlocks, kListThreads, "clear_lists launch");
  launch(mark_choices_kernel, (entries + kListThreads - 1) / kListThreads, kListThreads, "mark_choices launch");
  launch(count_choices_kernel, (schedule::builder::num_counts(build, lists) + kWarps - 1) / kWarps, kListThreads,
         "count_choices launch");
  launch(place_choices_kernel<kPlacingThreads>, 1, kPlacingThreads, "place_choices launch");
  launch(fill_lists_kernel, (schedule::builder::num_block_parts(build, lists) + kWarps - 1) / kWarps, kListThreads,
         "fill_lists launch");
}

}  // namespace tangram::gpu::builder
