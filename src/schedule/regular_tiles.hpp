// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tiles that begin at rows which no mask moves: what tile_list.cpp makes of a TileShape that does not follow the mask.
#pragma once

#include <cstdint>

#include "schedule/builder/team.hpp"

namespace tangram::schedule {

/// Tiles of `rows` rows of [0, num_rows); unless `every` is 0 they begin anew at its multiples, as
/// TileShape::anew_every has it.
struct RegularTiles {
  int32_t num_rows = 0, rows = 1, every = 0;

  TANGRAM_HOST_DEVICE static int32_t tiles_of(int32_t count, int32_t rows) { return (count + rows - 1) / rows; }
  /// Number of tiles of rows [0, end).
  TANGRAM_HOST_DEVICE int32_t count(int32_t end) const {
    return every == 0 ? tiles_of(end, rows) : end / every * tiles_of(every, rows) + tiles_of(end % every, rows);
  }
  TANGRAM_HOST_DEVICE int32_t count() const { return count(num_rows); }
  /// The first row of a tile; of the one behind the last num_rows.
  TANGRAM_HOST_DEVICE int32_t begin(int32_t tile) const {
    int32_t begin = tile * rows;
    if (every > 0) {
      const int32_t each = tiles_of(every, rows);
      begin = tile / each * every + tile % each * rows;
    }
    return begin < num_rows ? begin : num_rows;
  }
};

}  // namespace tangram::schedule
