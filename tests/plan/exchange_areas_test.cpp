// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/exchange_areas.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

// Area of each rank, cell by cell.
std::vector<int64_t> count_areas(const Mask& mask, const std::vector<RankRun>& map, int64_t chunk_size, int cp_size) {
  std::vector<int64_t> areas(static_cast<size_t>(cp_size));
  for (const RankRun& run : map) {
    for (int64_t row = run.begin * chunk_size; row < run.end * chunk_size; ++row) {
      for (const AttnSlice& slice : mask.slices()) {
        if (!slice.q_range.contains(row)) continue;
        areas[static_cast<size_t>(run.rank)] += slice.keys_of(row).size();
      }
    }
  }
  return areas;
}

TEST(ExchangeAreas, BringsAreasOfPacksUnderALimitAndKeepsRows) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    const int cp_size = 2 + static_cast<int>(random() % 7);
    const int64_t chunk_size = trial % 3 == 0 ? 2 : 1;
    const int per_rank = 200, num_chunks = per_rank * cp_size;
    std::vector<int64_t> borders{0};
    const int64_t num_rows = num_chunks * chunk_size;
    while (borders.back() < num_rows) {
      borders.push_back(std::min<int64_t>(num_rows, borders.back() + 1 + static_cast<int64_t>(random() % 300)));
    }
    const Mask mask = varlen_mask(borders, true);
    std::vector<RankRun> map;
    for (int rank = 0; rank < cp_size; ++rank) map.push_back({rank * per_rank, (rank + 1) * per_rank, rank});
    const int64_t limit = mask.area() * 51 / 50 / cp_size;
    exchange_areas(map, RowAreas(mask.slices(), num_rows), chunk_size, cp_size, limit);

    const std::vector<int64_t> areas = count_areas(mask, map, chunk_size, cp_size);
    EXPECT_LE(*std::max_element(areas.begin(), areas.end()), limit) << "trial " << trial;
    std::vector<int> chunks(static_cast<size_t>(cp_size));
    int next = 0;
    for (const RankRun& run : map) {
      EXPECT_EQ(run.begin, next);
      EXPECT_GT(run.size(), 0);
      chunks[static_cast<size_t>(run.rank)] += run.size();
      next = run.end;
    }
    EXPECT_EQ(next, num_chunks);
    EXPECT_EQ(chunks, std::vector<int>(static_cast<size_t>(cp_size), per_rank));
  }
}

// The rows of a run at whose end the widest row lies may be the narrower ones further in.
TEST(ExchangeAreas, StopsWhereRowsOfTheEndsComeToBeAlike) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 10, 110, 120, 220, 240}, true);
  std::vector<RankRun> map{{0, 15, 0}, {15, 110, 1}, {110, 215, 0}, {215, 240, 1}};
  const int64_t limit = mask.area() * 21 / 40;
  exchange_areas(map, RowAreas(mask.slices(), 240), 1, 2, limit);
  const std::vector<int64_t> areas = count_areas(mask, map, 1, 2);
  EXPECT_LE(std::max(areas[0], areas[1]), limit);
}

TEST(ExchangeAreas, LeavesWhatIsBalancedAsItIs) {
  const Mask mask = full_mask(64, 64);
  std::vector<RankRun> map{{0, 20, 1}, {20, 52, 0}, {52, 64, 1}};
  const std::vector<RankRun> before = map;
  exchange_areas(map, RowAreas(mask.slices(), 64), 1, 2, mask.area() / 2);
  EXPECT_EQ(map, before);
}

}  // namespace
}  // namespace tangram
