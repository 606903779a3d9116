// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels of sm80 as lists and choices see them.
#pragma once

#include "attn/sm80/shapes.hpp"
#include "schedule/kernel_table.hpp"

namespace tangram::sm80 {

/// Of head dims that have a class (find_shape_class).
constexpr schedule::KernelTable kernel_table(int head_dim, int head_dim_v) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  schedule::KernelTable table{.backward = {row.backward.keys, kStepQueries, true},
                              .backward_head_dim = row.head_dim,
                              .backward_head_dim_v = row.head_dim_v};
  for (schedule::WorkTileShape& shape : table.forward) shape = {row.forward.rows, row.forward.keys};
  return table;
}

}  // namespace tangram::sm80
