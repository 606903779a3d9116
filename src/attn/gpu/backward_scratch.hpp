// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a backward call computes in, and how it lies in its workspace. Without a workspace pointers are null, and
// `bytes` says what one must have.
#pragma once

#include <cstddef>

#include "attn/gpu/views.hpp"
#include "cuda/scratch_layout.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/head_lists.hpp"
#include "schedule/kernel_table.hpp"
#include "tangram/attn_shape.hpp"

namespace tangram::gpu {

/// Numbers of query tiles, and of accumulator tiles of split work tiles.
struct BackwardSizes {
  size_t tiles = 0;
  size_t accum_tiles = 0;
  size_t tables = 1;  ///< of so many query tiles each, that hold what belongs to a query head and tile
  schedule::KernelTable kernels;

  BackwardSizes() = default;
  BackwardSizes(size_t num_tiles, size_t num_accum_tiles, const AttnShape& shape, const schedule::KernelTable& of,
                int num_masks = 1)
      : tiles(num_tiles),
        accum_tiles(num_accum_tiles),
        tables(static_cast<size_t>(schedule::accum_tile_tables(shape.num_heads_q, num_masks))),
        kernels(of) {}

  BackwardScratch place(void* workspace) const {
    const size_t all_tiles = tiles * tables;
    const auto dim = static_cast<size_t>(kernels.backward_head_dim);
    const size_t both_dims = dim + static_cast<size_t>(kernels.backward_head_dim_v);
    const auto num_kernels = static_cast<size_t>(kernels.backward_kernels);
    const auto queries = static_cast<size_t>(kernels.backward.block_n);
    const auto keys = static_cast<size_t>(kernels.backward.block_m);
    cuda::ScratchLayout layout(workspace);
    BackwardScratch scratch;
    scratch.stats = layout.take<float>(all_tiles * queries * 4);
    scratch.dq_sums = layout.take<float>(all_tiles * queries * dim);
    scratch.accum_tiles = layout.take<float>(accum_tiles * keys * both_dims);
    scratch.dq_semaphore = layout.take<int32_t>(all_tiles * 2);
    scratch.split_semaphore = layout.take<int32_t>(num_kernels * accum_tiles);
    scratch.ticket = layout.take<int32_t>(num_kernels);
    scratch.bytes = layout.bytes();
    return scratch;
  }
  size_t bytes() const { return place(nullptr).bytes; }
};

/// Groups of keys that have sums.
inline int32_t num_key_groups(const AttnShape& shape) {
  return static_cast<int32_t>((shape.seqlen_k + schedule::kGroupKeys - 1) / schedule::kGroupKeys);
}

/// Query tiles of Q-stationary kernels.
inline int64_t num_sparse_tiles(const AttnShape& shape, const schedule::KernelTable& kernels) {
  const int64_t rows = kernels.backward_sparse.rows / schedule::packed_heads(shape);
  return (shape.seqlen_q + rows - 1) / rows;
}

inline SparseScratch place_sparse(const AttnShape& shape, const schedule::KernelTable& kernels, void* workspace) {
  const auto head_groups = static_cast<size_t>(shape.num_heads_q / schedule::packed_heads(shape));
  const auto stats = static_cast<size_t>(kernels.backward_sparse.rows) * 4;
  // Floats of one gradient; the sums of the other gradient follow without a gap.
  const size_t sums = static_cast<size_t>(shape.num_heads_kv) * static_cast<size_t>(num_key_groups(shape)) *
                      static_cast<size_t>(schedule::kGroupKeys * shape.head_dim);
  cuda::ScratchLayout layout(workspace);
  SparseScratch scratch;
  scratch.stats = layout.take<float>(static_cast<size_t>(num_sparse_tiles(shape, kernels)) * head_groups * stats);
  scratch.dk_sums = layout.take<float>(2 * sums);
  if (scratch.dk_sums != nullptr) scratch.dv_sums = scratch.dk_sums + sums;
  scratch.ticket = layout.take<int32_t>(1);
  scratch.bytes = layout.bytes();
  return scratch;
}

}  // namespace tangram::gpu
