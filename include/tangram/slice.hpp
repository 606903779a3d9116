// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// AttnSlice: one piece of a mask, a rectangle cut by a diagonal band. The family is closed under everything that
// planning does to it: cutting by rows or columns, shifting, mapping to local rows.
#pragma once

#include <cstdint>
#include <string>

#include "tangram/range.hpp"

namespace tangram {

/// Diagonal bounds that do not bind. Far beyond any row, yet far enough from the ends of int64 that shifting a slice
/// cannot overflow before `shifted` restores them.
inline constexpr int64_t kOpenMinDiag = -(int64_t{1} << 60);
inline constexpr int64_t kOpenMaxDiag = int64_t{1} << 60;

/// The four published mask types. They only construct slices; what is stored is the band.
enum class MaskType : int { kFull = 0, kCausal = 1, kInvCausal = 2, kBiCausal = 3 };

/// A rectangle `q_range x k_range` cut by a diagonal band: key j is visible to query i iff
/// `q_range.contains(i) && k_range.contains(j) && min_diag <= j - i <= max_diag`.
struct AttnSlice {
  Range q_range;
  Range k_range;
  int64_t min_diag = kOpenMinDiag;
  int64_t max_diag = kOpenMaxDiag;

  /// Every key of `k` is visible to every query of `q`.
  static constexpr AttnSlice full(Range q, Range k) { return {q, k}; }
  /// Bottom-right aligned: the last query sees every key, each earlier one a key fewer.
  static constexpr AttnSlice causal(Range q, Range k) { return {q, k, kOpenMinDiag, k.end - q.end}; }
  /// Top-left aligned: the first query sees every key, each later one a key fewer.
  static constexpr AttnSlice inv_causal(Range q, Range k) { return {q, k, k.begin - q.begin, kOpenMaxDiag}; }
  /// Both bounds: a parallelogram. Empty when `k` is shorter than `q`.
  static constexpr AttnSlice bi_causal(Range q, Range k) { return {q, k, k.begin - q.begin, k.end - q.end}; }
  /// The slice of a published mask type.
  static AttnSlice from_type(MaskType type, Range q, Range k);

  constexpr bool visible(int64_t i, int64_t j) const {
    return q_range.contains(i) && k_range.contains(j) && min_diag <= j - i && j - i <= max_diag;
  }
  /// The keys that query row `i`, a row of `q_range`, sees: one interval, possibly empty.
  constexpr Range keys_of(int64_t i) const {
    return {std::max(k_range.begin, i + min_diag), std::min(k_range.end, i + max_diag + 1)};
  }
  /// The query rows that see key row `j`, a row of `k_range`: one interval, possibly empty.
  constexpr Range queries_of(int64_t j) const {
    return {std::max(q_range.begin, j - max_diag), std::min(q_range.end, j - min_diag + 1)};
  }

  friend constexpr auto operator<=>(const AttnSlice&, const AttnSlice&) = default;
};

/// Number of visible cells, in closed form. The unit of compute cost.
int64_t area(const AttnSlice& slice);

/// Canonical form of a slice, with the same visible pairs. Ranges are trimmed to what is visible, diagonals that do not
/// bind are open, and a slice without visible pairs is `AttnSlice{}`.
AttnSlice canonical(const AttnSlice& slice);

/// The cells of `slice` in query rows `rows` / key rows `columns`, in canonical form.
AttnSlice cut_rows(const AttnSlice& slice, Range rows);
AttnSlice cut_columns(const AttnSlice& slice, Range columns);

/// The slice moved by `q_offset` query rows and `k_offset` key rows; the band moves along.
AttnSlice shifted(const AttnSlice& slice, int64_t q_offset, int64_t k_offset);

/// The cells that both slices show, in canonical form (the family is closed under intersection).
AttnSlice intersect(const AttnSlice& a, const AttnSlice& b);

/// `[0, 8) x [0, 8) diag [-inf, 0]`, for messages and logs.
std::string to_string(const AttnSlice& slice);

}  // namespace tangram
