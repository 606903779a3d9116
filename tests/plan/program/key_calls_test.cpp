// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/key_calls.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kBorder = 10;

TEST(OwnLocalRanges, NeighboursInBufferAndShardAreOneLocalRange) {
  RankPlan plan;
  plan.segments = {{{0, 40}, 0, 1, 0, 0, 0},
                   {{40, 60}, 40, 1, 40, 0, 0},
                   {{60, 90}, 60, 0, 5, 1, 1},
                   {{90, 100}, 90, 1, 60, 0, 0},
                   {{100, 130}, 100, 1, 80, 0, 0}};
  EXPECT_THAT(own_local_ranges(plan, 1),
              ElementsAre(LocalKvRange{{0, 60}, 0}, LocalKvRange{{90, 100}, 60}, LocalKvRange{{100, 130}, 80}));
  EXPECT_THAT(own_local_ranges(plan, 0), ElementsAre(LocalKvRange{{60, 90}, 5}));
}

TEST(OwnLocalRanges, BordersOfWhatIsReadAndAllElseIsCopied) {
  const std::vector<LocalKvRange> own = {{{0, 60}, 100}, {{60, 80}, 0}, {{90, 111}, 300}};
  const std::vector<LocalKvRange> read = worth_reading(own, kBorder);
  EXPECT_THAT(read, ElementsAre(own[0], own[2]));
  EXPECT_THAT(to_copy(own, read, kBorder), ElementsAre(LocalKvRange{{0, 10}, 100}, LocalKvRange{{50, 60}, 150}, own[1],
                                                       LocalKvRange{{90, 100}, 300}, LocalKvRange{{101, 111}, 311}));
  EXPECT_EQ(to_copy(own, {}, kBorder), own) << "kernels that read nothing there find all in the buffer";
}

TEST(OwnLocalRanges, OfPlansAreTheOwnRowsOnce) {
  constexpr int64_t kSeqlen = 4096;
  const Mask masks[] = {causal_mask(kSeqlen, kSeqlen), sliding_window_mask(kSeqlen, {300, 0}),
                        varlen_mask(std::vector<int64_t>{0, 1000, 1001, 2300, kSeqlen}, true)};
  for (const Mask& mask : masks) {
    for (const int64_t chunk_size : {64, 512}) {
      DistAttnConfig config;
      config.cp_size = 4;
      config.heads = {8, 2, 128, 128, DType::kBFloat16};
      config.dispatch = {DispatchAlgorithm::kTangram, chunk_size, 0};  // auto leaves short masks in sequence
      const Plan plan = make_plan(mask, config);
      for (int rank = 0; rank < 4; ++rank) {
        const RankPlan& rank_plan = plan.ranks()[static_cast<size_t>(rank)];
        std::map<int64_t, int64_t> expected, covered;  // shard row of each buffer row
        for (const KvSegment& segment : rank_plan.segments) {
          for (int64_t i = 0; segment.owner == rank && i < segment.global.size(); ++i) {
            expected[segment.row + i] = segment.owner_row + i;
          }
        }
        const std::vector<LocalKvRange> own = own_local_ranges(rank_plan, rank), read = worth_reading(own, kBorder);
        const auto cover = [&](const LocalKvRange& local_range, int64_t border) {
          for (int64_t i = border; i < local_range.keys.size() - border; ++i) {
            EXPECT_TRUE(covered.emplace(local_range.keys.begin + i, local_range.row + i).second) << "twice";
          }
        };
        for (const LocalKvRange& local_range : to_copy(own, read, kBorder)) cover(local_range, 0);
        for (const LocalKvRange& local_range : read) cover(local_range, kBorder);
        EXPECT_EQ(covered, expected);
      }
    }
  }
}

}  // namespace
}  // namespace tangram
