// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/own_stretches.hpp"

#include <algorithm>
#include <iterator>

namespace tangram {

std::vector<KeyStretch> own_stretches(const RankPlan& rank, int self) {
  std::vector<KeyStretch> stretches;
  for (const KvSegment& segment : rank.segments) {
    if (segment.owner != self || segment.global.empty()) continue;
    const KeyStretch next{{segment.row, segment.row + segment.global.size()}, segment.owner_row};
    if (!stretches.empty()) {
      KeyStretch& last = stretches.back();
      if (last.keys.end == next.keys.begin && last.row + last.keys.size() == next.row) {
        last.keys.end = next.keys.end;
        continue;
      }
    }
    stretches.push_back(next);
  }
  return stretches;
}

std::vector<KeyStretch> worth_reading(const std::vector<KeyStretch>& own, int64_t border) {
  std::vector<KeyStretch> worth;
  std::copy_if(own.begin(), own.end(), std::back_inserter(worth),
               [&](const KeyStretch& stretch) { return stretch.keys.size() > 2 * border; });
  return worth;
}

std::vector<KeyStretch> to_copy(const std::vector<KeyStretch>& own, const std::vector<KeyStretch>& read,
                                int64_t border) {
  std::vector<KeyStretch> copied;
  for (const KeyStretch& stretch : own) {
    const Range keys = stretch.keys;
    if (std::find(read.begin(), read.end(), stretch) == read.end() || keys.size() <= 2 * border) {
      copied.push_back(stretch);
      continue;
    }
    copied.push_back({{keys.begin, keys.begin + border}, stretch.row});
    copied.push_back({{keys.end - border, keys.end}, stretch.row + keys.size() - border});
  }
  return copied;
}

}  // namespace tangram
