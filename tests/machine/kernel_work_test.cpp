// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Closed forms against tiles counted one by one.
#include "machine/kernel_work.hpp"

#include <gtest/gtest.h>

#include <random>

namespace tangram {
namespace {

// Tiles of a slice that hold a visible cell, and those among them that also hold a hidden one.
KernelWork count_tiles(const AttnSlice& slice, const KernelModel& kernel) {
  KernelWork work;
  work.area = static_cast<double>(area(slice));
  const auto first = [](int64_t row, int unit) { return row / unit * unit; };
  for (int64_t i = first(slice.q_range.begin, kernel.tile_rows); i < slice.q_range.end; i += kernel.tile_rows) {
    const AttnSlice rows = cut_rows(slice, {i, i + kernel.tile_rows});
    for (int64_t j = first(slice.k_range.begin, kernel.tile_cols); j < slice.k_range.end; j += kernel.tile_cols) {
      if (area(cut_columns(rows, {j, j + kernel.tile_cols})) > 0) work.issued += kernel.tile_rows * kernel.tile_cols;
    }
  }
  return work;
}

TEST(KernelWorkCounts, CellsOfTilesAreWhatCountingTilesGives) {
  const KernelModel kernel{.tile_rows = 16, .tile_cols = 32, .item_rows = 128, .flops_per_s = 1};
  std::mt19937 rng(7);
  double closed = 0;
  double counted = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const auto draw = [&] { return static_cast<int64_t>(rng() % 1000); };
    const int64_t q = draw(), k = draw();
    const Range q_range{q, q + 200 + draw()};
    const Range k_range{k, k + 1300 + draw()};
    const AttnSlice slice = canonical(AttnSlice::from_type(static_cast<MaskType>(trial % 4), q_range, k_range));
    const KernelWork work = count_work(slice, kernel);
    const KernelWork tiles = count_tiles(slice, kernel);
    EXPECT_EQ(work.area, static_cast<double>(area(slice)));
    // One slice may lie well or badly on the grid: half a tile for each of its rows and edges.
    EXPECT_NEAR(work.issued, tiles.issued, 0.05 * tiles.issued) << to_string(slice);
    closed += work.issued;
    counted += tiles.issued;
  }
  EXPECT_NEAR(closed, counted, 0.005 * counted);  // no bias
}

TEST(KernelWorkCounts, WholeTilesAreCountedExactly) {
  const KernelModel kernel{.tile_rows = 64, .tile_cols = 128, .item_rows = 128, .flops_per_s = 1};
  const KernelWork work = count_work(AttnSlice::full({64, 320}, {128, 640}), kernel);
  EXPECT_EQ(work.issued, 256.0 * 512);
  EXPECT_EQ(work.cut, 0);
  EXPECT_EQ(work.items, 3);  // rows 0..127, 128..255, 256..383
  EXPECT_EQ(work.longest, 128.0 * 512);
}

}  // namespace
}  // namespace tangram
