// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// AttnSlice in 32 bits, for code that GPU threads run: rows are queries, or keys where a mask is transposed.
#pragma once

#include <cstdint>

#include "schedule/builder/team.hpp"

namespace tangram::schedule::builder {

template <class T>
TANGRAM_HOST_DEVICE constexpr T least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
TANGRAM_HOST_DEVICE constexpr T most(T a, T b) {
  return a < b ? b : a;
}
TANGRAM_HOST_DEVICE constexpr int32_t tiles_of(int32_t rows, int32_t block) { return (rows + block - 1) / block; }

// Diagonals that do not bind.
inline constexpr int32_t kOpenMin = INT32_MIN, kOpenMax = INT32_MAX;

/// Rows and keys [begin, end); without any, row_begin == row_end.
struct Slice {
  int32_t row_begin = 0, row_end = 0;
  int32_t key_begin = 0, key_end = 0;
  int32_t min_diag = kOpenMin, max_diag = kOpenMax;

  TANGRAM_HOST_DEVICE constexpr bool empty() const { return row_begin >= row_end; }
  /// The keys that a row sees.
  TANGRAM_HOST_DEVICE constexpr int32_t first_key(int32_t row) const {
    return min_diag == kOpenMin ? key_begin : static_cast<int32_t>(most<int64_t>(key_begin, int64_t{row} + min_diag));
  }
  TANGRAM_HOST_DEVICE constexpr int32_t end_key(int32_t row) const {
    return max_diag == kOpenMax ? key_end : static_cast<int32_t>(least<int64_t>(key_end, int64_t{row} + max_diag + 1));
  }
};

/// Same result as tangram::canonical for the slice with these diagonals, which may be any; kOpenMin and kOpenMax, and
/// what lies beyond, are open.
TANGRAM_HOST_DEVICE constexpr Slice canonical(const Slice& slice, int64_t min_diag, int64_t max_diag) {
  int64_t row_begin = slice.row_begin, row_end = slice.row_end, key_begin = slice.key_begin, key_end = slice.key_end;
  const bool has_min = min_diag > kOpenMin, has_max = max_diag < kOpenMax;
  if (row_begin >= row_end || key_begin >= key_end || min_diag > max_diag) return {};
  if (has_min) row_end = least(row_end, key_end - min_diag);
  if (has_max) row_begin = most(row_begin, key_begin - max_diag);
  if (row_begin >= row_end) return {};
  if (has_min) key_begin = most(key_begin, row_begin + min_diag);
  if (has_max) key_end = least(key_end, row_end + max_diag);
  if (key_begin >= key_end) return {};
  const bool binds_min = has_min && min_diag > key_begin - (row_end - 1);
  const bool binds_max = has_max && max_diag < key_end - 1 - row_begin;
  return {static_cast<int32_t>(row_begin),
          static_cast<int32_t>(row_end),
          static_cast<int32_t>(key_begin),
          static_cast<int32_t>(key_end),
          binds_min ? static_cast<int32_t>(min_diag) : kOpenMin,
          binds_max ? static_cast<int32_t>(max_diag) : kOpenMax};
}

/// The cells in rows [begin, end).
TANGRAM_HOST_DEVICE constexpr Slice cut_rows(const Slice& slice, int32_t begin, int32_t end) {
  Slice cut = slice;
  cut.row_begin = most(cut.row_begin, begin);
  cut.row_end = least(cut.row_end, end);
  return canonical(cut, slice.min_diag, slice.max_diag);
}

/// Rows and keys exchanged.
TANGRAM_HOST_DEVICE constexpr Slice transposed(const Slice& slice) {
  return {slice.key_begin,
          slice.key_end,
          slice.row_begin,
          slice.row_end,
          slice.max_diag == kOpenMax ? kOpenMin : -slice.max_diag,
          slice.min_diag == kOpenMin ? kOpenMax : -slice.min_diag};
}

/// Whether a stands before b where slices are in order of their keys.
TANGRAM_HOST_DEVICE constexpr bool has_earlier_keys(const Slice& a, const Slice& b) {
  if (a.key_begin != b.key_begin) return a.key_begin < b.key_begin;
  if (a.key_end != b.key_end) return a.key_end < b.key_end;
  if (a.row_begin != b.row_begin) return a.row_begin < b.row_begin;
  if (a.row_end != b.row_end) return a.row_end < b.row_end;
  return a.min_diag != b.min_diag ? a.min_diag < b.min_diag : a.max_diag < b.max_diag;
}

}  // namespace tangram::schedule::builder
