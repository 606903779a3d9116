// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Range: a half-open interval of token rows.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

namespace tangram {

/// Half-open interval `[begin, end)` of token rows. Empty when `begin >= end`.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t size() const { return std::max<int64_t>(0, end - begin); }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool contains(int64_t row) const { return begin <= row && row < end; }
  constexpr bool contains(const Range& other) const {
    return other.empty() || (begin <= other.begin && other.end <= end);
  }
  constexpr Range shifted(int64_t offset) const { return {begin + offset, end + offset}; }

  friend constexpr auto operator<=>(const Range&, const Range&) = default;
};

/// The rows in both ranges; empty (possibly with begin > end) when they do not meet.
constexpr Range intersect(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// The smallest range that holds both; an empty range counts for nothing.
constexpr Range hull(const Range& a, const Range& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace tangram
