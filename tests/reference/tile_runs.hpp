// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the runs of a tile list say, from their definition (tangram/tile_list.hpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "tangram/tile_list.hpp"

namespace tangram::reference {

/// The keys that `row` sees in a run.
inline RowInterval interval_of(const TileList& list, const MaskTile& item, const TileRange& run, int32_t row) {
  if (run.interval_begin >= 0) {
    return list.intervals[static_cast<size_t>(run.interval_begin + row - item.row_begin)];
  }
  if (row < run.row_begin || row >= run.row_end) return {};
  return {std::max(run.slice_k_begin, row + run.min_diag), std::min(run.slice_k_end, row + run.max_diag + 1)};
}

/// Tiles of keys that an item walks.
inline int64_t steps_of(const TileList& list, const MaskTile& item) {
  int64_t steps = 0;
  for (int32_t r = item.run_begin; r < item.run_end; ++r) {
    const TileRange& run = list.runs[static_cast<size_t>(r)];
    steps += (run.k_end - run.k_begin + list.shape.block_n - 1) / list.shape.block_n;
  }
  return steps;
}

}  // namespace tangram::reference
