// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where tiles begin, as schedule/tile_begins.cpp has it: at multiples of a block, and anew at rows where the mask falls
// apart if that saves tiles.
#pragma once

#include <cstdint>

#include "schedule/builder/places.hpp"
#include "schedule/regular_tiles.hpp"

namespace tangram::schedule::builder {

/// Tiles without candidates. The team meets behind it.
template <class Team>
TANGRAM_HOST_DEVICE void place_regular_tiles(const Team& team, const RegularTiles& tiles, int32_t* begins) {
  for_each(team, tiles.count() + 1, [&](int32_t tile) { begins[tile] = tiles.begin(tile); });
  team.sync();
}

/// Writes where tiles begin, and num_rows behind them, to `begins`; returns how many there are, and writes nothing if
/// there are more than `room`. `candidates`: [count] rows at which the mask falls apart, rising, above 0.
/// `tiles_before`: [count + 2] to work in.
///
/// From a row on at which tiles begin anew, what follows does not depend on what was before. Behind a candidate with
/// as many rows as a block they always do; so a member walks from each such candidate to the next.
template <class Team>
TANGRAM_HOST_DEVICE int32_t place_tiles(const Team& team, const int32_t* candidates, int32_t count, int32_t num_rows,
                                        int32_t block, int32_t* begins, int32_t room, int32_t* tiles_before) {
  const auto row_of = [&](int32_t i) { return i < 0 ? 0 : i < count ? candidates[i] : num_rows; };
  const auto is_long = [&](int32_t i) { return i < 0 || row_of(i + 1) - row_of(i) >= block; };
  // Number of tiles up to the next candidate, for a candidate at which tiles begin anew; else 0.
  for_each(team, count + 1, [&](int32_t at) {
    if (!is_long(at - 1)) return;
    int32_t begin = at - 1;
    int32_t i = begin + 1;
    for (; i < count && !is_long(i); ++i) {
      const int32_t row = row_of(i), length = row_of(i + 1) - row;
      const int32_t in_last = tiles_of(row - row_of(begin), block) * block - (row - row_of(begin));
      const int32_t behind_it = length > in_last ? tiles_of(length - in_last, block) : 0;
      if (in_last > 0 && behind_it + 1 <= tiles_of(length, block)) {
        tiles_before[i + 1] = 0;
        continue;
      }
      tiles_before[begin + 1] = tiles_of(row - row_of(begin), block);
      begin = i;
    }
    tiles_before[begin + 1] = tiles_of(row_of(i) - row_of(begin), block);
  });
  team.sync();
  const int32_t num_tiles = sums_before(team, tiles_before, count + 1);
  if (num_tiles > room) return num_tiles;
  for_each(team, num_tiles + 1, [&](int32_t tile) {
    if (tile == num_tiles) {
      begins[tile] = num_rows;
      return;
    }
    const int32_t at = first_of(count + 1, [&](int32_t i) { return tiles_before[i] > tile; }) - 1;
    begins[tile] = row_of(at - 1) + (tile - tiles_before[at]) * block;
  });
  team.sync();
  return num_tiles;
}

}  // namespace tangram::schedule::builder
