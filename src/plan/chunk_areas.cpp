// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The number of keys that a row sees is linear between the (at most two) rows where a diagonal starts or stops to bind.
// Summed over a chunk it is linear in the chunk's index. So it enters two difference arrays, at both ends of the run of
// chunks only.
#include "plan/chunk_areas.hpp"

#include "core/require.hpp"

namespace tangram {

namespace {

// Sums of `constant + slope * row` over rows, accumulated per chunk.
class AreaSum {
 public:
  AreaSum(int64_t chunk_size, int64_t num_chunks)
      : chunk_size_(chunk_size),
        direct_(static_cast<size_t>(num_chunks)),
        constant_(static_cast<size_t>(num_chunks) + 1),
        slope_(static_cast<size_t>(num_chunks) + 1) {}

  void add(Range rows, int64_t constant, int64_t slope) {
    if (rows.empty()) return;
    const int64_t first = rows.begin / chunk_size_;
    const int64_t last = (rows.end - 1) / chunk_size_;
    const auto partial = [&](int64_t chunk) {
      const Range part = intersect(rows, {chunk * chunk_size_, (chunk + 1) * chunk_size_});
      direct_[static_cast<size_t>(chunk)] +=
          constant * part.size() + slope * ((part.begin + part.end - 1) * part.size() / 2);
    };
    partial(first);
    if (last > first) partial(last);
    if (last - first < 2) return;
    // Chunk c holds rows c*size .. c*size + size-1: sum = size*constant + slope*size*(size-1)/2 + slope*size^2 * c.
    const int64_t base = chunk_size_ * constant + slope * (chunk_size_ * (chunk_size_ - 1) / 2);
    const int64_t step = slope * chunk_size_ * chunk_size_;
    constant_[static_cast<size_t>(first + 1)] += base;
    constant_[static_cast<size_t>(last)] -= base;
    slope_[static_cast<size_t>(first + 1)] += step;
    slope_[static_cast<size_t>(last)] -= step;
  }

  std::vector<int64_t> finish() && {
    int64_t constant = 0;
    int64_t slope = 0;
    for (size_t c = 0; c < direct_.size(); ++c) {
      constant += constant_[c];
      slope += slope_[c];
      direct_[c] += constant + slope * static_cast<int64_t>(c);
    }
    return std::move(direct_);
  }

 private:
  int64_t chunk_size_;
  std::vector<int64_t> direct_;
  std::vector<int64_t> constant_;
  std::vector<int64_t> slope_;
};

}  // namespace

std::vector<int64_t> chunk_areas(std::span<const AttnSlice> slices, int64_t chunk_size, int64_t num_chunks) {
  AreaSum sum(chunk_size, num_chunks);
  for (const AttnSlice& slice : slices) {
    const Range q = slice.q_range;
    const Range k = slice.k_range;
    TANGRAM_ASSERT(q.begin >= 0 && q.end <= chunk_size * num_chunks);
    // From row `lower_from` on min_diag is the left border; before row `upper_until` max_diag is the right one.
    const int64_t lower_from = slice.min_diag > kOpenMinDiag ? k.begin - slice.min_diag : q.end;
    const int64_t upper_until = slice.max_diag < kOpenMaxDiag ? k.end - slice.max_diag - 1 : q.begin;
    int64_t row = q.begin;
    while (row < q.end) {
      const bool lower = row >= lower_from;
      const bool upper = row < upper_until;
      int64_t end = q.end;
      if (!lower) end = std::min(end, lower_from);
      if (upper) end = std::min(end, upper_until);
      const int64_t constant = (upper ? slice.max_diag + 1 : k.end) - (lower ? slice.min_diag : k.begin);
      sum.add({row, end}, constant, static_cast<int64_t>(upper) - static_cast<int64_t>(lower));
      row = end;
    }
  }
  return std::move(sum).finish();
}

}  // namespace tangram
