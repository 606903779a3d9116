// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tiles of the kernels of float32 tensors.
#pragma once

#include "attn/sm80/shapes.hpp"
#include "schedule/kernel_table.hpp"

namespace tangram::sm80::float32 {

inline constexpr int kWarps = 8, kThreads = 32 * kWarps;
inline constexpr int kForwardRows = 64, kForwardKeys = 32;  // a lane's key each
inline constexpr int kBackwardKeys = 32;

/// The class of head dimensions, the larger of both counting: its columns are in the registers of a warp.
constexpr int class_of(int head_dim, int head_dim_v) {
  const int larger = head_dim < head_dim_v ? head_dim_v : head_dim;
  return larger <= 128 ? 128 : 256;
}

constexpr schedule::KernelTable kernel_table(int head_dim, int head_dim_v) {
  const int dim = class_of(head_dim, head_dim_v);
  schedule::KernelTable table{.splits_kv = true,
                              .backward = {kBackwardKeys, kStepQueries, true},
                              .backward_head_dim = dim,
                              .backward_head_dim_v = dim};
  for (schedule::WorkTileShape& shape : table.forward) shape = {kForwardRows, kForwardKeys};
  return table;
}

}  // namespace tangram::sm80::float32
