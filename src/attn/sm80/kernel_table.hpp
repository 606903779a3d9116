// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels of sm80 as lists and choices see them.
#pragma once

#include "attn/sm80/shapes.hpp"
#include "schedule/kernel_table.hpp"

namespace tangram::sm80 {

/// Kernels for head dims that have a class (find_shape_class), on devices of a tier.
constexpr schedule::KernelTable kernel_table(int head_dim, int head_dim_v, SharedMemoryTier tier) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  const auto at = static_cast<int>(tier);
  schedule::KernelTable table{.splits_kv = true,
                              .backward = {row.backward[at].keys, kStepQueries, true},
                              .backward_head_dim = row.head_dim,
                              .backward_head_dim_v = row.head_dim_v};
  for (schedule::WorkTileShape& shape : table.forward) {
    shape = {row.forward[at].rows, row.forward[at].keys};
  }
  return table;
}

}  // namespace tangram::sm80
