// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/local_kv_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tangram/error.hpp"

namespace tangram {
namespace {

/// Keys before and behind a range that tiles of keys may reach.
constexpr int64_t kHalo = 127;

/// Looks a tile up like the kernels (local_kv_ranges.cuh).
int64_t local_kv_row(const std::vector<GranuleRange>& of_granule, int64_t first, int64_t num_keys) {
  const GranuleRange& local_range = of_granule[static_cast<size_t>(first / kLocalKvGranule)];
  return local_range.begin <= first && first + num_keys <= local_range.end ? first + local_range.shift : -1;
}

std::vector<LocalKvRange> random_local_ranges(int64_t seqlen_k, std::mt19937& rng) {
  std::vector<LocalKvRange> local_ranges;
  int64_t at = static_cast<int64_t>(rng() % 40);
  while (at < seqlen_k) {
    const int64_t end = std::min<int64_t>(seqlen_k, at + 1 + static_cast<int64_t>(rng() % 700));
    local_ranges.push_back({{at, end}, static_cast<int64_t>(rng() % 5000)});
    at = end + (rng() % 3 == 0 ? 0 : static_cast<int64_t>(rng() % 300));
  }
  std::shuffle(local_ranges.begin(), local_ranges.end(), rng);
  return local_ranges;
}

TEST(LocalKvRanges, TilesAreFoundWhereTheyLieOrHoldOnlyBordersOfLocalRanges) {
  std::mt19937 rng(3);
  for (int round = 0; round < 60; ++round) {
    const int64_t seqlen_k = 1 + static_cast<int64_t>(rng() % 3000);
    const std::vector<LocalKvRange> local_ranges = random_local_ranges(seqlen_k, rng);
    const auto of_granule = local_ranges_of_granules(local_ranges, seqlen_k);
    const auto local_range_of = [&](int64_t key) {
      return std::find_if(local_ranges.begin(), local_ranges.end(),
                          [&](const LocalKvRange& s) { return s.keys.contains(key); });
    };
    for (const int64_t num_keys : {96, 128}) {
      for (int64_t first = 0; first < seqlen_k; ++first) {
        const int64_t row = local_kv_row(of_granule, first, num_keys);
        if (row >= 0) {
          const auto local_range = local_range_of(first);
          ASSERT_NE(local_range, local_ranges.end());
          ASSERT_LE(first + num_keys, local_range->keys.end);
          ASSERT_EQ(row, local_range->row + first - local_range->keys.begin);
          continue;
        }
        for (const LocalKvRange& s : local_ranges) {
          const int64_t begin = std::max(first, s.keys.begin), end = std::min(first + num_keys, s.keys.end);
          if (begin >= end) continue;
          const bool at_begin = end <= s.keys.begin + kHalo;
          const bool at_end = begin >= s.keys.end - kHalo;
          ASSERT_TRUE(at_begin || at_end)
              << "tile at " << first << " in [" << s.keys.begin << ", " << s.keys.end << ")";
        }
      }
    }
  }
}

TEST(LocalKvRanges, LongLocalRangesAreReadButForTheirBorders) {
  const std::vector<LocalKvRange> local_ranges = {{{100, 1000}, 7}, {{1000, 1500}, 4000}};
  const auto of_granule = local_ranges_of_granules(local_ranges, 1500);
  EXPECT_EQ(local_kv_row(of_granule, 100, 128), 7);
  EXPECT_EQ(local_kv_row(of_granule, 99, 128), -1);
  EXPECT_EQ(local_kv_row(of_granule, 872, 128), 779);
  EXPECT_EQ(local_kv_row(of_granule, 873, 128), -1);
  EXPECT_EQ(local_kv_row(of_granule, 1008, 128), 4008);
  EXPECT_EQ(local_kv_row(of_granule, 1372, 128), 4372) << "the last granule is not whole";
}

// A kernel keeps what it looked up last and asks it first (local_kv_ranges.cuh).
TEST(LocalKvRanges, EveryEntryHoldsForAllTilesInIt) {
  std::mt19937 rng(4);
  for (int round = 0; round < 60; ++round) {
    const int64_t seqlen_k = 1 + static_cast<int64_t>(rng() % 3000);
    const auto of_granule = local_ranges_of_granules(random_local_ranges(seqlen_k, rng), seqlen_k);
    for (const GranuleRange& entry : of_granule) {
      for (const int64_t num_keys : {96, 128}) {
        for (int64_t first = entry.begin; first + num_keys <= entry.end; ++first) {
          ASSERT_EQ(local_kv_row(of_granule, first, num_keys), first + entry.shift);
          ASSERT_EQ(first + entry.shift < 0, entry.shift == kNoLocalRange);
        }
      }
    }
  }
}

TEST(LocalKvRanges, WhatLiesBetweenLocalRangesIsSaidToo) {
  const auto of_granule = local_ranges_of_granules(std::vector<LocalKvRange>{{{320, 640}, 5}}, 1000);
  const GranuleRange before{0, 320, kNoLocalRange}, in{320, 640, -315}, after{640, 1000, kNoLocalRange};
  EXPECT_EQ(of_granule.front(), before);
  EXPECT_EQ(of_granule[19], before);
  EXPECT_EQ(of_granule[20], in);
  EXPECT_EQ(of_granule[39], in);
  EXPECT_EQ(of_granule[40], after);
  EXPECT_EQ(of_granule.back(), after);
}

TEST(LocalKvRanges, RejectsLocalRangesThatOverlapOrLeaveTheSequence) {
  const auto make = [](const std::vector<LocalKvRange>& local_ranges) {
    return local_ranges_of_granules(local_ranges, 100);
  };
  EXPECT_THROW(make({{{0, 50}, 0}, {{49, 60}, 100}}), InvalidArgument);
  EXPECT_THROW(make({{{90, 101}, 0}}), InvalidArgument);
  EXPECT_THROW(make({{{-1, 10}, 0}}), InvalidArgument);
  EXPECT_THROW(make({{{0, 10}, -1}}), InvalidArgument);
  EXPECT_EQ(make({}).size(), 7U);
}

}  // namespace
}  // namespace tangram
