// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Sets of rows as lists of ranges.
#pragma once

#include <algorithm>
#include <vector>

#include "tangram/range.hpp"

namespace tangram {

/// Ascending, disjoint, and none next to another.
inline std::vector<Range> joined_ranges(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.empty(); });
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (result.empty() || result.back().end < range.begin) {
      result.push_back(range);
    } else {
      result.back().end = std::max(result.back().end, range.end);
    }
  }
  return result;
}

/// Parts of `ranges` that are not in `others`, both made by joined_ranges().
inline std::vector<Range> ranges_without(const std::vector<Range>& ranges, const std::vector<Range>& others) {
  std::vector<Range> result;
  auto other = others.begin();
  for (Range range : ranges) {
    while (other != others.end() && other->end <= range.begin) ++other;
    for (auto next = other; next != others.end() && next->begin < range.end; ++next) {
      if (range.begin < next->begin) result.push_back({range.begin, next->begin});
      range.begin = next->end;
    }
    if (!range.empty()) result.push_back(range);
  }
  return result;
}

}  // namespace tangram
