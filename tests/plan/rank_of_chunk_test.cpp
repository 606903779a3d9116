// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/rank_of_chunk.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

TEST(RankOfChunk, ReadsAsTheListThatItWasMadeOf) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int> ranks;
    for (unsigned runs = rng() % 8; runs > 0; --runs) {
      ranks.insert(ranks.end(), 1 + rng() % 5, static_cast<int>(rng() % 3));
    }
    const RankOfChunk packed = ranks;
    ASSERT_EQ(packed.size(), ranks.size());
    EXPECT_EQ(packed.empty(), ranks.empty());
    EXPECT_EQ(packed.expanded(), ranks);
    size_t chunk = 0;
    int64_t begin = 0;
    for (const int rank : packed) EXPECT_EQ(rank, ranks[chunk++]);
    EXPECT_EQ(chunk, ranks.size());
    for (chunk = 0; chunk < ranks.size(); ++chunk) EXPECT_EQ(packed[chunk], ranks[chunk]);
    RankOfChunk appended;
    for (const OwnedChunks& run : packed.runs()) {
      EXPECT_GT(run.end, begin);
      appended.append(run.end - begin, run.rank);
      begin = run.end;
    }
    EXPECT_EQ(appended, packed);
    for (size_t i = 1; i < packed.runs().size(); ++i) EXPECT_NE(packed.runs()[i].rank, packed.runs()[i - 1].rank);
  }
}

TEST(RankOfChunk, EqualListsAreEqualHoweverTheyWereMade) {
  RankOfChunk one = {0, 0, 1}, other;
  other.append(1, 0);
  other.append(0, 5);
  other.push_back(0);
  other.append(1, 1);
  EXPECT_EQ(one, other);
  other.push_back(1);
  EXPECT_NE(one, other);
}

// A million rows, cut at any: it was a list of a million ranks, copied, compared and scanned with every plan.
TEST(RankOfChunk, ADispatchCutAtAnyRowIsAsSmallAsItsRuns) {
  std::mt19937 rng(1);
  std::vector<int64_t> ends{0};
  while (ends.back() < 1 << 20) ends.push_back(std::min<int64_t>(1 << 20, ends.back() + 1000 + rng() % 90000));
  DistAttnConfig config;
  config.cp_size = 2;
  const Plan plan = make_plan(varlen_mask(ends, true), config);
  ASSERT_EQ(plan.q_dispatch.chunk_size, 1);
  EXPECT_EQ(plan.q_dispatch.num_chunks(), 1 << 20);
  EXPECT_LT(plan.q_dispatch.rank_of_chunk.runs().size(), 100u);
}

}  // namespace
}  // namespace tangram
