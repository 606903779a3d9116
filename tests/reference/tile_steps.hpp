// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Steps of kernels over tile lists, counted from the runs.
#pragma once

#include <cstdint>

#include "plan/tile_list.hpp"

namespace tangram::reference {

/// Tiles of keys that an item walks.
inline int64_t steps_of(const TileList& list, const TileItem& item) {
  int64_t steps = 0;
  for (int32_t r = item.run_begin; r < item.run_end; ++r) {
    const TileRun& run = list.runs[static_cast<size_t>(r)];
    steps += (run.k_end - run.k_begin + list.shape.block_n - 1) / list.shape.block_n;
  }
  return steps;
}

}  // namespace tangram::reference
