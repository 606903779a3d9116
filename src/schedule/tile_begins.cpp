// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/tile_begins.hpp"

#include <algorithm>
#include <cstddef>

#include "tangram/range.hpp"

namespace tangram::schedule {
namespace {

/// Rows at which the mask falls apart: no slice continues across them, and no key is seen from both sides by slices
/// that meet there. Of slices sorted by their first row.
std::vector<int64_t> separations(const std::vector<AttnSlice>& slices) {
  std::vector<int64_t> result;
  std::vector<AttnSlice> open;  // slices that reach the current row
  for (size_t i = 0; i < slices.size();) {
    const int64_t row = slices[i].q_range.begin;
    std::erase_if(open, [&](const AttnSlice& slice) { return slice.q_range.end < row; });
    size_t end = i;
    bool apart = true;
    for (; end < slices.size() && slices[end].q_range.begin == row; ++end) {
      apart = apart && std::all_of(open.begin(), open.end(), [&](const AttnSlice& slice) {
                return slice.q_range.end == row && intersect(slice.k_range, slices[end].k_range).empty();
              });
    }
    if (apart && row > 0) result.push_back(row);
    open.insert(open.end(), slices.begin() + static_cast<std::ptrdiff_t>(i),
                slices.begin() + static_cast<std::ptrdiff_t>(end));
    i = end;
  }
  return result;
}

}  // namespace

std::vector<int32_t> tile_begins(const std::vector<AttnSlice>& slices, int64_t num_rows, int64_t block,
                                 bool follows_mask) {
  const std::vector<int64_t> candidates = follows_mask ? separations(slices) : std::vector<int64_t>{};
  std::vector<int32_t> begins;
  begins.reserve(static_cast<size_t>(num_rows / block) + candidates.size() + 2);
  int64_t next = 0;
  const auto tiles_of = [&](int64_t rows) { return rows > 0 ? (rows + block - 1) / block : 0; };
  const auto fill_to = [&](int64_t end) {
    const size_t count = begins.size();
    begins.resize(count + static_cast<size_t>(tiles_of(end - next)));
    for (size_t i = count; i < begins.size(); ++i, next += block) begins[i] = static_cast<int32_t>(next);
  };
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int64_t border = candidates[i];
    const int64_t length = (i + 1 < candidates.size() ? candidates[i + 1] : num_rows) - border;
    fill_to(border);
    const int64_t in_last = next - border;  // rows behind the border that the last tile would hold
    if (in_last > 0 && (length >= block || tiles_of(length - in_last) + 1 > tiles_of(length))) {
      next = border;
    }
  }
  fill_to(num_rows);
  return begins;
}

std::vector<int32_t> tile_begins_anew(int64_t num_rows, int64_t block, int64_t every) {
  std::vector<int32_t> begins;
  begins.reserve(static_cast<size_t>((num_rows / every + 1) * ((every + block - 1) / block) + 1));
  for (int64_t first = 0; first < num_rows; first += every) {
    const int64_t end = std::min(first + every, num_rows);
    for (int64_t row = first; row < end; row += block) begins.push_back(static_cast<int32_t>(row));
  }
  return begins;
}

}  // namespace tangram::schedule
