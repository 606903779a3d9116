// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Brute-force oracle of masks: a bitmap of visible cells, filled cell by cell from the definition of a slice, sharing
// no code with the library. For small sizes only.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram::reference {

/// How often each cell of `[0, rows) x [0, columns)` is covered.
class Cells {
 public:
  Cells(int64_t rows, int64_t columns) : columns_(columns), counts_(static_cast<size_t>(rows * columns)) {}
  Cells(int64_t rows, int64_t columns, std::span<const AttnSlice> slices) : Cells(rows, columns) {
    for (const AttnSlice& slice : slices) add(slice);
  }

  void add(const AttnSlice& slice) {
    for (int64_t i = slice.q_range.begin; i < slice.q_range.end; ++i) {
      for (int64_t j = slice.k_range.begin; j < slice.k_range.end; ++j) {
        if (j - i >= slice.min_diag && j - i <= slice.max_diag) ++counts_[static_cast<size_t>(i * columns_ + j)];
      }
    }
  }

  int count(int64_t i, int64_t j) const { return counts_[static_cast<size_t>(i * columns_ + j)]; }
  int64_t area() const {
    int64_t sum = 0;
    for (const int count : counts_) sum += count;
    return sum;
  }
  bool has_double() const {
    for (const int count : counts_) {
      if (count > 1) return true;
    }
    return false;
  }

  friend bool operator==(const Cells&, const Cells&) = default;

 private:
  int64_t columns_;
  std::vector<int> counts_;
};

/// A random slice inside `rows x columns`; every second one has bounds that bind, some are empty.
inline AttnSlice random_slice(std::mt19937& rng, int64_t rows, int64_t columns) {
  const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  const int64_t q0 = draw(0, rows), q1 = draw(0, rows), k0 = draw(0, columns), k1 = draw(0, columns);
  AttnSlice slice{{std::min(q0, q1), std::max(q0, q1)}, {std::min(k0, k1), std::max(k0, k1)}};
  if (draw(0, 1) == 1) slice.min_diag = draw(-rows, columns);
  if (draw(0, 1) == 1) slice.max_diag = draw(-rows, columns);
  return slice;
}

/// Random disjoint slices: candidates that would cover a cell twice are dropped.
inline std::vector<AttnSlice> random_disjoint_slices(std::mt19937& rng, int64_t rows, int64_t columns, int num_tries) {
  std::vector<AttnSlice> slices;
  Cells cells(rows, columns);
  for (int i = 0; i < num_tries; ++i) {
    const AttnSlice slice = random_slice(rng, rows, columns);
    Cells next = cells;
    next.add(slice);
    if (next.has_double()) continue;
    cells = next;
    slices.push_back(slice);
  }
  return slices;
}

}  // namespace tangram::reference
