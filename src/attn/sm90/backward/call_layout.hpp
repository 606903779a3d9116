// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a backward call computes in, and how it lies in its workspace.
#pragma once

#include <cstddef>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "cuda/scratch_layout.hpp"
#include "schedule/head_lists.hpp"
#include "tangram/attn_shape.hpp"

namespace tangram::sm90::backward {

/// For so many query tiles, and accumulator tiles for work tiles in pieces.
struct CallLayout {
  size_t tiles;
  size_t accum_tiles;
  size_t tables;             // of so many query tiles each, that hold what belongs to a query head and tile
  int head_dim, head_dim_v;  // of the class
  int num_kernels;           // which take work tiles and join pieces each for itself (launch_split)

  CallLayout(size_t num_tiles, size_t num_accum_tiles, const AttnShape& shape, int num_masks = 1)
      : tiles(num_tiles),
        accum_tiles(num_accum_tiles),
        tables(static_cast<size_t>(schedule::accum_tile_tables(shape.num_heads_q, num_masks))),
        head_dim(shape_class(shape.head_dim, shape.head_dim_v).head_dim),
        head_dim_v(shape_class(shape.head_dim, shape.head_dim_v).head_dim_v),
        num_kernels(shape_class(shape.head_dim, shape.head_dim_v).backward_split ? 2 : 1) {}

  /// Fills in the pointers into a workspace of any content; returns its size. Without one they become null.
  size_t place(Params& params, PrePostParams& pre_post, void* workspace) const {
    const size_t all_tiles = tiles * tables;
    const auto dim = static_cast<size_t>(head_dim), both_dims = static_cast<size_t>(head_dim + head_dim_v);
    const auto kernels = static_cast<size_t>(num_kernels);
    constexpr auto kQueries = static_cast<size_t>(kTileShape.block_n), kKeys = static_cast<size_t>(kTileShape.block_m);
    cuda::ScratchLayout layout(workspace);
    params.stats = pre_post.stats = layout.take<float>(all_tiles * kQueries * 4);
    params.dq_sums = pre_post.dq_sums = layout.take<float>(all_tiles * kQueries * dim);
    params.accum_tiles = layout.take<float>(accum_tiles * kKeys * both_dims);
    params.dq_semaphore = pre_post.dq_semaphore = layout.take<int32_t>(all_tiles * 2);
    params.split_semaphore = pre_post.split_semaphore = layout.take<int32_t>(kernels * accum_tiles);
    params.ticket = pre_post.ticket = layout.take<int32_t>(kernels);
    return layout.bytes();
  }
  size_t bytes() const {
    Params params{};
    PrePostParams pre_post{};
    return place(params, pre_post, nullptr);
  }
};

}  // namespace tangram::sm90::backward
