// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Puts runs of keys that a whole tile sees side by side, so that steps are full where a mask keeps small blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Keys that lie together in a gathered run, and that a kernel loads at once.
inline constexpr int kGroupKeys = 16;

/// A tile list in which some work tiles have a gathered run, which replaces several runs that every row of the tile
/// sees whole. It has keys [0, k_end) of its own axis: keys [16 i, 16 i + 16) are those from groups[group_begin + i]
/// on. Negative entries are ~key, and say that the three groups behind follow without a gap.
struct GatheredList {
  std::vector<MaskTile> work_tiles;
  std::vector<TileRange> runs;
  std::vector<int32_t> groups;
};

/// Marks, in a list of first keys of groups, the keys that the three groups behind follow without a gap.
void mark_large_boxes(std::vector<int32_t>& groups);

/// Gathers runs of `tiles` whose lengths are multiples of kGroupKeys, in work tiles that then need an eighth fewer
/// steps. Gathers nothing unless all work tiles together need a twentieth fewer. Work tiles that came longest first
/// still do. Equal neighbours share their groups. O(work tiles + runs + groups).
std::optional<GatheredList> gather_runs(const TileList& tiles);

/// Gathers in all work tiles what can be, whether it pays or not: for launches that must not depend on the mask.
GatheredList gather_all_runs(const TileList& tiles);

/// The list as it is.
GatheredList gather_none(const TileList& tiles);

/// Whether a twentieth of the runs or more are not seen whole by all rows of their tile, for example if tiles do not
/// begin with blocks. Masked steps take up to twice as long. Not for work tiles in another order than longest first.
/// O(work tiles + runs).
bool cuts_blocks(const TileList& tiles);

/// Whether other tiles of the same mask may have runs to gather, judged by the runs of these: regardless of rows,
/// gathering would save a twentieth of the steps. Not for work tiles in another order than longest first. O(work tiles
/// + runs).
bool may_gather(const TileList& tiles);

}  // namespace tangram::schedule
