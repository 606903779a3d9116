// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The Hopper kernels as lists and choices see them.
#pragma once

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/query_backward/params.hpp"
#include "schedule/kernel_table.hpp"

namespace tangram::sm90 {

/// Kernels for head dims that have a class (find_shape_class).
constexpr schedule::KernelTable kernel_table(int head_dim, int head_dim_v) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  schedule::KernelTable table{.many_rows = kManyRows,
                              .splits_kv = true,
                              .packs_any_heads = packs_any_heads(head_dim, head_dim_v),
                              .gathers = gathers_runs(head_dim, head_dim_v),
                              .aligns_work_tiles = aligns_work_tiles(head_dim, head_dim_v),
                              .fetches_ranges = fetches_runs(head_dim, head_dim_v),
                              .backward = backward::kTileShape,
                              .backward_head_dim = row.head_dim,
                              .backward_head_dim_v = row.head_dim_v,
                              .backward_kernels = row.backward_split ? 2 : 1};
  for (const auto work_tiles :
       {ForwardWorkTiles::kPlain, ForwardWorkTiles::kMany, ForwardWorkTiles::kGathered, ForwardWorkTiles::kAligned}) {
    table.forward[static_cast<int>(work_tiles)] = {forward_tile_rows(head_dim, head_dim_v, work_tiles),
                                                   forward_tile_keys(head_dim, head_dim_v, false, work_tiles)};
  }
  if (has_exact_kernels(head_dim, head_dim_v)) table.backward_sparse = {query_backward::kRows, query_backward::kKeys};
  return table;
}

}  // namespace tangram::sm90
