// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a forward kernel walks of a mask, or of masks of head groups.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/kernel_table.hpp"
#include "schedule/kv_splits.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// The kernel.
struct ForwardChoice {
  ForwardWorkTiles work_tiles = ForwardWorkTiles::kPlain;
  bool gathers = false;    ///< one that loads chosen keys
  bool many_runs = false;  ///< one that fetches runs ahead
};

/// Query tiles. Of several masks, mask g of n is of K/V heads [g * heads_kv / n, (g + 1) * heads_kv / n) and of their
/// query heads. Head groups are the query heads of a K/V head that share a tile.
struct ForwardLists {
  std::vector<MaskTile> work_tiles;       ///< in scheduled order: of each head group, or each of one
  std::vector<int32_t> work_tile_groups;  ///< of each work tile its head group; empty: work tiles are of all
  std::vector<TileRange> runs;            ///< of all masks, as are the following
  std::vector<RowInterval> intervals;
  std::vector<int32_t> key_groups;    ///< as GatheredList::groups
  std::vector<int32_t> part_rows;     ///< of each work tile, as PartList::first_rows; empty: all tiles are whole
  std::vector<TileParts> part_tiles;  ///< one for all heads of a mask
  std::vector<int32_t> part_heads;  ///< of each of these the first query head, all have heads_q / n; empty: of one mask
  ForwardChoice choice;
  int num_masks = 1;
  int64_t num_part_rows = 0;  ///< of the workspace: a row has room for all heads, so that masks share rows
  // One mask: steps of all work tiles of a head group, and of the longest.
  int64_t total_steps = 0, longest_steps = 0;
};

}  // namespace tangram::schedule
