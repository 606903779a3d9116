// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a dealing of the backward pass finds in a simulated L2 cache.
#include "schedule/cache_simulation.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tangram::schedule {
namespace {

constexpr int64_t kHeldTiles = 800;  // of 64 queries: 64 KB of queries, dout and sums of dq at head_dim 128, of 50 MB

AttnShape shape_of(int64_t queries, int heads_q, int heads_kv) {
  return {queries, queries, heads_q, heads_kv, 128, 128, DType::kBFloat16};
}

/// Key tiles that all visit the first `tiles` query tiles.
Extents equal_tiles(int count, int64_t tiles) {
  return make_extents(std::vector<Extent>(static_cast<size_t>(count), Extent{tiles, 0, tiles}));
}

double missed(const Extents& extents, const AttnShape& shape, int num_sms, const Dealing& how, bool inside = false) {
  const Setting in{extents, shape, {.multiprocessors = num_sms}, {}};
  return CacheSimulation(in, false).missed_share(how, inside);
}

TEST(CacheSimulation, WhatFitsIsMissedOnce) {
  const int64_t tiles = kHeldTiles / 2;
  EXPECT_DOUBLE_EQ(missed(equal_tiles(5, tiles), shape_of(64 * tiles, 1, 1), 1, {}), 1.0 / 5);
}

TEST(CacheSimulation, WhatIsLongerThanTheCacheIsAlwaysMissedByOneMultiprocessor) {
  const int64_t tiles = kHeldTiles * 5 / 4;
  EXPECT_DOUBLE_EQ(missed(equal_tiles(5, tiles), shape_of(64 * tiles, 1, 1), 1, {}), 1);
}

TEST(CacheSimulation, ItemsThatBeginTogetherShareWhatTheyVisit) {
  const int64_t tiles = kHeldTiles * 5 / 4;
  EXPECT_DOUBLE_EQ(missed(equal_tiles(5, tiles), shape_of(64 * tiles, 1, 1), 5, {}), 1.0 / 5);
}

// Two KV heads at once are more than the cache holds.
TEST(CacheSimulation, OneHeadAfterTheOtherNeedsHalfOfTheCache) {
  const int64_t tiles = kHeldTiles * 3 / 4;
  const Extents extents = equal_tiles(4, tiles);
  const AttnShape shape = shape_of(64 * tiles, 2, 2);
  EXPECT_DOUBLE_EQ(missed(extents, shape, 1, {.together = 1}), 1.0 / 4);
  EXPECT_DOUBLE_EQ(missed(extents, shape, 1, {.together = 0}), 1);
}

// Walked head by head, the heads of a short item fall behind those of a long one; tile by tile both stay together.
TEST(CacheSimulation, HeadsInsideKeepUnequalItemsTogether) {
  const int64_t tiles = 1024;
  const Extents extents = make_extents({{tiles, 0, tiles}, {tiles * 3 / 4, 0, tiles * 3 / 4}});
  const AttnShape shape = shape_of(64 * tiles, 8, 1);
  const double apart = missed(extents, shape, 2, {}, false), together = missed(extents, shape, 2, {}, true);
  EXPECT_DOUBLE_EQ(together, 4.0 / 7);
  EXPECT_GT(apart, 0.75);
}

TEST(CacheSimulation, PenaltyBeginsAtOneAndGrows) {
  EXPECT_DOUBLE_EQ(missed_penalty(0), 1);
  for (double share = 0; share < 0.95; share += 0.1) EXPECT_LT(missed_penalty(share), missed_penalty(share + 0.1));
}

}  // namespace
}  // namespace tangram::schedule
