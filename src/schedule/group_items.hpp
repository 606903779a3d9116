// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which groups of 16 keys each query tile sees, of masks that keep whole groups: what the backward kernel walks that
// has the queries of an item at rest and gathers keys.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/gather_runs.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Query rows [row_begin, row_end), of which each sees the keys of GroupList::groups[group_begin] and of those behind,
/// and no others.
struct alignas(16) GroupItem {
  int32_t row_begin;
  int32_t row_end;
  int32_t group_begin;
  int32_t num_groups;

  friend bool operator==(const GroupItem&, const GroupItem&) = default;
};

struct GroupList {
  std::vector<GroupItem> items;  ///< most groups first
  std::vector<int32_t> groups;   ///< first keys, multiples of kGroupKeys; negative entries as in GatheredList
};

/// The items of `tiles`; nothing where some row of a tile sees other keys than the rest, or keys that are not whole
/// groups. Equal neighbours share their groups. O(items log items + runs + groups).
std::optional<GroupList> group_items(const TileList& tiles);

}  // namespace tangram::schedule
