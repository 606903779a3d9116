// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/run_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::ElementsAre;

TEST(RunList, CutsAtDocumentsAndJoinsAgain) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 6, 16}, true);
  const MaskComponents components(mask.slices(), 1, 16);
  const RowAreas areas(mask.slices(), 16);
  RunList list(components, areas, 1, 2);
  list.assign(std::vector<RankRun>{{0, 10, 0}, {10, 16, 1}});
  EXPECT_EQ(list[list.first_of(0)].end, 6);
  EXPECT_EQ(list[list.first_of(1)].begin, 6);
  EXPECT_THAT(list.runs(), ElementsAre(RankRun{0, 10, 0}, RankRun{10, 16, 1}));
  list.give(list.first_of(1), 7, 9, 1);
  EXPECT_THAT(list.runs(), ElementsAre(RankRun{0, 7, 0}, RankRun{7, 9, 1}, RankRun{9, 10, 0}, RankRun{10, 16, 1}));
  list.give(list[list.last_of(1)].before, 9, 10, 1);
  list.join(1);
  EXPECT_THAT(list.runs(), ElementsAre(RankRun{0, 7, 0}, RankRun{7, 16, 1}));
  EXPECT_EQ(list.of_rank(1).size(), 1u);
}

// Against an array of ranks.
TEST(RunList, FollowsRandomGifts) {
  std::mt19937 rng(5);
  constexpr int kChunks = 60;
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 50, 55, 130, 240}, true);
  const MaskComponents components(mask.slices(), 4, kChunks);
  const RowAreas areas(mask.slices(), 4 * kChunks);
  RunList list(components, areas, 4, 3);
  list.assign(std::vector<RankRun>{{0, kChunks, 2}});
  std::vector<int> ranks(kChunks, 2);
  for (int n = 0; n < 2000; ++n) {
    const std::vector<int>& runs = list.of_rank(static_cast<int>(rng() % 3));
    if (runs.empty()) continue;
    const int run = runs[rng() % runs.size()];
    const int begin = list[run].begin + static_cast<int>(rng() % static_cast<uint32_t>(list[run].size()));
    const int end = begin + 1 + static_cast<int>(rng() % static_cast<uint32_t>(list[run].end - begin));
    const int rank = static_cast<int>(rng() % 3);
    const size_t component = static_cast<size_t>(list[run].component);
    list.give(run, begin, end, rank);
    list.join(component);
    std::fill(ranks.begin() + begin, ranks.begin() + end, rank);
    std::vector<int> listed;
    for (const RankRun& next : list.runs()) {
      ASSERT_EQ(next.begin, static_cast<int>(listed.size()));
      listed.insert(listed.end(), static_cast<size_t>(next.size()), next.rank);
    }
    ASSERT_EQ(listed, ranks);
  }
}

}  // namespace
}  // namespace tangram
