// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Algebra of slices. Everything is closed form: no function here walks rows.
#include "tangram/slice.hpp"

#include <fmt/format.h>

#include "core/require.hpp"

namespace tangram {

namespace {

// Sum of min(max(x, 0), cap) for x = first, first + 1, ..., first + count - 1: a ramp between two plateaus.
int64_t clamped_ramp_sum(int64_t first, int64_t count, int64_t cap) {
  const int64_t last = first + count - 1;
  // x in [lo, hi] lies on the slope 1 .. cap - 1; below it the sum gets nothing, above it cap each.
  const int64_t lo = std::max<int64_t>(first, 1);
  const int64_t hi = std::min(last, cap - 1);
  int64_t sum = 0;
  if (lo <= hi) sum += (lo + hi) * (hi - lo + 1) / 2;
  const int64_t plateau_begin = std::max(first, cap);
  if (plateau_begin <= last) sum += (last - plateau_begin + 1) * cap;
  return sum;
}

// Cells of the rectangle with j - i <= diag.
int64_t area_up_to(const Range& q, const Range& k, int64_t diag) {
  if (q.empty() || k.empty()) return 0;
  if (diag >= kOpenMaxDiag) return q.size() * k.size();
  return clamped_ramp_sum(q.begin + diag + 1 - k.begin, q.size(), k.size());
}

// Whether neither diagonal binds, as of most slices where these are many: blocks. As `canonical` writes it.
bool has_open_band(const AttnSlice& slice) { return slice.min_diag == kOpenMinDiag && slice.max_diag == kOpenMaxDiag; }

}  // namespace

AttnSlice AttnSlice::from_type(MaskType type, Range q, Range k) {
  switch (type) {
    case MaskType::kFull: return full(q, k);
    case MaskType::kCausal: return causal(q, k);
    case MaskType::kInvCausal: return inv_causal(q, k);
    case MaskType::kBiCausal: return bi_causal(q, k);
  }
  require(false, "AttnSlice::from_type: type must be 0 (full), 1 (causal), 2 (inv_causal) or 3 (bi_causal) (got {})",
          static_cast<int>(type));
  return {};
}

int64_t area(const AttnSlice& slice) {
  if (has_open_band(slice)) return slice.q_range.size() * slice.k_range.size();
  if (slice.min_diag > slice.max_diag) return 0;
  const int64_t below =
      slice.min_diag <= kOpenMinDiag ? 0 : area_up_to(slice.q_range, slice.k_range, slice.min_diag - 1);
  return area_up_to(slice.q_range, slice.k_range, slice.max_diag) - below;
}

AttnSlice canonical(const AttnSlice& slice) {
  Range q = slice.q_range;
  Range k = slice.k_range;
  if (q.empty() || k.empty() || slice.min_diag > slice.max_diag) return {};
  if (has_open_band(slice)) return slice;
  // Row i sees something iff i + min_diag < k.end and i + max_diag >= k.begin: an interval of rows. Columns likewise.
  if (slice.min_diag > kOpenMinDiag) q.end = std::min(q.end, k.end - slice.min_diag);
  if (slice.max_diag < kOpenMaxDiag) q.begin = std::max(q.begin, k.begin - slice.max_diag);
  if (q.empty()) return {};
  if (slice.min_diag > kOpenMinDiag) k.begin = std::max(k.begin, q.begin + slice.min_diag);
  if (slice.max_diag < kOpenMaxDiag) k.end = std::min(k.end, q.end - 1 + slice.max_diag + 1);
  if (k.empty()) return {};
  AttnSlice result{q, k, slice.min_diag, slice.max_diag};
  // The corners of the rectangle have the extreme diagonals; a bound beyond its corner cuts nothing.
  if (result.min_diag <= k.begin - (q.end - 1)) result.min_diag = kOpenMinDiag;
  if (result.max_diag >= k.end - 1 - q.begin) result.max_diag = kOpenMaxDiag;
  return result;
}

AttnSlice cut_rows(const AttnSlice& slice, Range rows) {
  return canonical({intersect(slice.q_range, rows), slice.k_range, slice.min_diag, slice.max_diag});
}

AttnSlice cut_columns(const AttnSlice& slice, Range columns) {
  return canonical({slice.q_range, intersect(slice.k_range, columns), slice.min_diag, slice.max_diag});
}

AttnSlice shifted(const AttnSlice& slice, int64_t q_offset, int64_t k_offset) {
  AttnSlice result{slice.q_range.shifted(q_offset), slice.k_range.shifted(k_offset), slice.min_diag, slice.max_diag};
  if (slice.min_diag > kOpenMinDiag) result.min_diag += k_offset - q_offset;
  if (slice.max_diag < kOpenMaxDiag) result.max_diag += k_offset - q_offset;
  return result;
}

AttnSlice intersect(const AttnSlice& a, const AttnSlice& b) {
  return canonical({intersect(a.q_range, b.q_range), intersect(a.k_range, b.k_range), std::max(a.min_diag, b.min_diag),
                    std::min(a.max_diag, b.max_diag)});
}

std::string to_string(const AttnSlice& slice) {
  const auto diag = [](int64_t value) {
    if (value <= kOpenMinDiag) return std::string("-inf");
    if (value >= kOpenMaxDiag) return std::string("inf");
    return fmt::format("{}", value);
  };
  return fmt::format("[{}, {}) x [{}, {}) diag [{}, {}]", slice.q_range.begin, slice.q_range.end, slice.k_range.begin,
                     slice.k_range.end, diag(slice.min_diag), diag(slice.max_diag));
}

}  // namespace tangram
