// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/pair_by_area.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tangram {
namespace {

std::vector<int64_t> areas_of_ranks(const std::vector<int64_t>& areas, const std::vector<int>& ranks, int cp_size) {
  std::vector<int64_t> sums(static_cast<size_t>(cp_size));
  for (size_t c = 0; c < areas.size(); ++c) sums[static_cast<size_t>(ranks[c])] += areas[c];
  return sums;
}

TEST(PairByArea, EachRankTakesHeavyAndLightChunks) {
  EXPECT_EQ(pair_by_area(std::vector<int64_t>{1, 9, 1, 9, 1, 9, 1, 9}, 4), (std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(pair_by_area(std::vector<int64_t>{1, 1, 1, 1, 9, 9, 9, 9}, 4), (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(pair_by_area(std::vector<int64_t>{1, 2, 3}, 1), std::vector<int>(3, 0));
}

TEST(PairByArea, EqualChunksStayInOrder) {
  EXPECT_EQ(pair_by_area(std::vector<int64_t>(6, 5), 3), (std::vector<int>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(pair_by_area(std::vector<int64_t>(4, 0), 2), (std::vector<int>{0, 0, 1, 1})) << "a mask without pairs";
}

// Areas that grow and fall as in trees; the sum up to each rank is off by one chunk at most.
TEST(PairByArea, RanksHaveEqualRowsAndAreasWithinAChunk) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 300; ++round) {
    const int cp_size = static_cast<int>(1 + rng() % 9), per_rank = static_cast<int>(1 + rng() % 20);
    std::vector<int64_t> areas(static_cast<size_t>(cp_size * per_rank));
    int64_t depth = 0;
    for (int64_t& area : areas) area = depth = rng() % 8 == 0 ? static_cast<int64_t>(rng() % 500) : depth + 16;
    const std::vector<int> ranks = pair_by_area(areas, cp_size);
    for (int rank = 0; rank < cp_size; ++rank) {
      EXPECT_EQ(std::count(ranks.begin(), ranks.end(), rank), per_rank);
    }
    const std::vector<int64_t> sums = areas_of_ranks(areas, ranks, cp_size);
    const int64_t total = std::accumulate(areas.begin(), areas.end(), int64_t{0});
    const int64_t largest = *std::max_element(areas.begin(), areas.end());
    for (int64_t taken = 0, rank = 0; rank < cp_size; ++rank) {
      taken += sums[static_cast<size_t>(rank)];
      EXPECT_LE(std::abs(taken * cp_size - total * (rank + 1)), largest * cp_size) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace tangram
