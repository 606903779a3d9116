// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the work tiles of a backward pass visit, by key tile: how long they are, and how unequal.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/key_work_tiles.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Query tiles of one head that a work tile visits: in all, the first one and the one after the last.
struct Extent {
  int64_t count = 0;
  int64_t first = 0;
  int64_t end = 0;
};

/// Extents of work tiles in the order of their keys, and in which order to schedule them.
struct Extents {
  std::vector<Extent> of_keys;
  std::vector<size_t> work_tile;  ///< the indices of these work tiles in their tile list
  std::vector<size_t> order;      ///< the schedule: indices into of_keys, longest first unless keys are awaited
  /// Indices grouped by shared queries (documents): group with the longest work tile first, longest first in each.
  /// group_ends: end of each group.
  std::vector<size_t> by_group;
  std::vector<size_t> group_ends;
};
/// Extents of work tiles that are in the order of their keys.
Extents make_extents(std::vector<Extent> of_keys);
/// Extents of a transposed tile list; fills `work_tile`.
Extents measure_extents(const TileList& tiles, const std::vector<RangeQueryTiles>& run_tiles);

/// Input of is_scattered and are_unequal (tile_schedule_heuristic.hpp), over all work tiles. Tiles that they visit,
/// tiles from first to last, number of work tiles that visit any, and how many of these are long.
struct Visits {
  int64_t tiles = 0;
  int64_t between = 0;
  int64_t work_tiles = 0;
  int64_t long_work_tiles = 0;
};
Visits visits_of(const Extents& extents);

/// How unequal the work tiles are that meet at one query tile. Root mean square distance from the median (so that few
/// long work tiles count), as a share of their mean length, over sampled tiles. 0 for full masks, windows and full
/// documents, about 0.25 for causal ones.
double length_spread(const TileList& tiles, const std::vector<RangeQueryTiles>& run_tiles, int64_t num_q_tiles);

/// The direction in which a work tile meets those scheduled before it where they have already been, and whether
/// neighbours begin at the same tile.
struct Direction {
  bool descending = false;
  bool same_begin = false;
};
Direction choose_direction(const Extents& extents);

}  // namespace tangram::schedule
