// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/chunk_areas.hpp"

#include <gtest/gtest.h>

#include <random>

#include "reference/cells.hpp"

namespace tangram {
namespace {

TEST(ChunkAreas, EqualTheCountedCells) {
  std::mt19937 rng(5);
  for (int n = 0; n < 2000; ++n) {
    const int64_t chunk_size = 1 + static_cast<int64_t>(rng() % 7);
    const int64_t rows = chunk_size * (1 + static_cast<int64_t>(rng() % 12));
    const int64_t columns = 1 + static_cast<int64_t>(rng() % 40);
    std::vector<AttnSlice> slices;
    for (int i = 0; i < 3; ++i) {
      const AttnSlice slice = canonical(reference::random_slice(rng, rows, columns));
      if (!slice.q_range.empty()) slices.push_back(slice);
    }
    const reference::Cells cells(rows, columns, slices);
    const std::vector<int64_t> areas = chunk_areas(slices, chunk_size, rows / chunk_size);
    for (int64_t c = 0; c < rows / chunk_size; ++c) {
      int64_t expected = 0;
      for (int64_t i = c * chunk_size; i < (c + 1) * chunk_size; ++i) {
        for (int64_t j = 0; j < columns; ++j) expected += cells.count(i, j);
      }
      ASSERT_EQ(areas[static_cast<size_t>(c)], expected) << "chunk " << c << " of size " << chunk_size;
    }
  }
}

TEST(ChunkAreas, HoldAtTheLargestSizes) {
  constexpr int64_t kSeqlen = int64_t{1} << 31;
  constexpr int64_t kChunk = int64_t{1} << 20;
  const AttnSlice causal = canonical(AttnSlice::causal({0, kSeqlen}, {0, kSeqlen}));
  const std::vector<int64_t> areas = chunk_areas({{causal}}, kChunk, kSeqlen / kChunk);
  for (size_t c = 0; c < areas.size(); ++c) {
    const int64_t begin = static_cast<int64_t>(c) * kChunk;
    ASSERT_EQ(areas[c], area(cut_rows(causal, {begin, begin + kChunk})));
  }
}

}  // namespace
}  // namespace tangram
