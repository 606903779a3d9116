// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Lists of the Q-stationary backward kernel, which gathers keys. They hold the groups of 16 keys that each query tile
// sees, and masks of groups that only some of its rows see.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedule/gather_runs.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Query rows [row_begin, row_end) of one work tile. Each sees the keys of `num_groups` entries of GroupList::groups
/// from group_begin on and no others. The last `num_masked` groups are masked by GroupList::masks from mask_begin on.
struct alignas(16) GroupWorkTile {
  int32_t row_begin;
  int32_t row_end;
  int32_t group_begin;
  int32_t num_groups;
  int32_t num_masked;
  int32_t mask_begin;
  int32_t head_group;  ///< the head group of the work tile; -1: of each head group
  int32_t reserved;

  friend bool operator==(const GroupWorkTile&, const GroupWorkTile&) = default;
};

/// Visibility of one key: a bit for each packed row of the work tile, row r being query row r / pack.
struct alignas(16) RowBits {
  uint32_t words[4];
};
struct GroupMask {
  RowBits keys[kGroupKeys];
};

struct GroupList {
  std::vector<GroupWorkTile> work_tiles;  ///< most groups first
  std::vector<int32_t> groups;            ///< first keys, multiples of kGroupKeys; negative entries as in GatheredList
  std::vector<GroupMask> masks;
};

/// The work tiles of `tiles`, whose rows times heads that are packed are 128. Nothing if runs are not whole groups of
/// keys, or if groups are masked too often (unless `any_masks`). Nothing too if a tile has both rows that see something
/// and rows that do not. Equal neighbours share their groups. O(work tiles log work tiles + runs + groups).
std::optional<GroupList> group_work_tiles(const TileList& tiles, bool any_masks = false);

/// Joins the lists of several masks; mask g is that of `groups_per_mask` head groups from g * groups_per_mask on.
/// Order: head group after head group, in each the order of its list.
GroupList join_groups(std::span<const GroupList> lists, int32_t groups_per_mask);

}  // namespace tangram::schedule
