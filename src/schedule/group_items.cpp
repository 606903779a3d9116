// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/group_items.hpp"

#include <algorithm>
#include <span>

namespace tangram::schedule {
namespace {

bool is_whole(const TileRun& run) {
  return run.full_begin == run.k_begin && run.full_end == run.k_end && run.k_begin % kGroupKeys == 0 &&
         run.k_end % kGroupKeys == 0;
}

}  // namespace

std::optional<GroupList> group_items(const TileList& tiles) {
  if (!std::ranges::all_of(tiles.runs, is_whole)) return std::nullopt;
  GroupList result;
  result.items.reserve(tiles.items.size());
  std::vector<int32_t> keys;
  std::ptrdiff_t last = 0;  // where the groups of the last item with other ones begin
  for (const TileItem& item : tiles.items) {
    keys.clear();
    const auto runs = std::span(tiles.runs).subspan(static_cast<size_t>(item.run_begin),
                                                    static_cast<size_t>(item.run_end - item.run_begin));
    for (const TileRun& run : runs) {
      for (int32_t key = run.k_begin; key < run.k_end; key += kGroupKeys) keys.push_back(key);
    }
    mark_large_boxes(keys);
    if (!std::equal(keys.begin(), keys.end(), result.groups.begin() + last, result.groups.end())) {
      last = static_cast<std::ptrdiff_t>(result.groups.size());
      result.groups.insert(result.groups.end(), keys.begin(), keys.end());
    }
    result.items.push_back(
        {item.row_begin, item.row_end, static_cast<int32_t>(last), static_cast<int32_t>(keys.size())});
  }
  std::ranges::stable_sort(result.items, std::ranges::greater{}, &GroupItem::num_groups);
  return result;
}

}  // namespace tangram::schedule
