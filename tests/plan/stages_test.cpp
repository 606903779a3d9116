// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/stages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "plan/clock/kv_time.hpp"
#include "reference/plan_check.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

DistAttnConfig config_of(int cp_size, const OverlapConfig& overlap) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.dispatch.algorithm = DispatchAlgorithm::kZigzag;
  config.overlap = overlap;
  return config;
}

TEST(Stages, AFixedNumberIsKept) {
  for (const int num_stages : {1, 2, 3, 5}) {
    const Plan plan = make_plan(causal_mask(8192, 8192), config_of(4, {num_stages, num_stages + 1, false}));
    reference::expect_valid(plan);
    for (const RankPlan& rank : plan.ranks()) {
      ASSERT_EQ(rank.forward.size(), static_cast<size_t>(num_stages) + 1);
      ASSERT_EQ(rank.backward.size(), static_cast<size_t>(num_stages) + 2);
      // About equal: no group further than an eighth from its share at either end.
      for (int s = 1; s <= num_stages; ++s) {
        const int64_t share = rank.remote_kv_rows / num_stages;
        const int64_t rows = rank.forward[static_cast<size_t>(s)].exchange.rows_received();
        EXPECT_LE(std::abs(rows - share), share / 4 + 1);
      }
    }
  }
}

// Areas of stages of blocks are differences of sums; passes of as many stages have the same ones.
TEST(Stages, AreasOfScatteredBlocksAreThoseOfTheirSlices) {
  std::mt19937 rng(3);
  for (const int64_t block : {64, 96, 128}) {
    std::vector<AttnSlice> slices;
    for (int64_t q = 0; q < 40 * block; q += block) {
      for (int64_t k = 0; k < 40 * block; k += block) {
        if (k == q || rng() % 5 == 0) slices.push_back(AttnSlice::full({q, q + block}, {k, k + block}));
      }
    }
    for (const bool keeps : {false, true}) {
      const Plan plan = make_plan(Mask(40 * block, 40 * block, slices), config_of(4, {3, 3, keeps}));
      reference::expect_valid(plan);
      for (const RankPlan& rank : plan.ranks()) {
        const std::vector<int64_t> forward = stage_areas(rank.segments, rank.slices, 3, AttnPass::kForward),
                                   backward = stage_areas(rank.segments, rank.slices, 3, AttnPass::kBackward);
        for (size_t s = 0; s <= 3; ++s) {
          EXPECT_EQ(forward[s], rank.forward[s].area);
          EXPECT_EQ(backward[s], rank.backward[s].area);
        }
        EXPECT_EQ(rank.backward.back().kept, keeps);
      }
    }
  }
}

TEST(Stages, NothingRemoteNeedsNone) {
  const std::vector<int64_t> cu{0, 1024, 2048, 3072, 4096};
  DistAttnConfig config = config_of(4, {});
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  const Plan plan = make_plan(varlen_mask(cu, true), config);
  EXPECT_EQ(plan.rows_moved(), 0);
  for (const RankPlan& rank : plan.ranks()) {
    EXPECT_EQ(rank.forward.size(), 1u);
    EXPECT_EQ(rank.backward.size(), 1u);
    EXPECT_EQ(rank.forward[0].slices, rank.slices);
  }
  EXPECT_EQ(plan.predicted.exposed_s, 0);
}

TEST(Stages, KeptRowsAreThoseOfTheLastForwardStage) {
  const Plan plan = make_plan(causal_mask(8192, 8192), config_of(4, {2, 3, true}));
  reference::expect_valid(plan);
  for (const RankPlan& rank : plan.ranks()) {
    EXPECT_TRUE(rank.backward.back().kept);
    EXPECT_EQ(rank.backward.back().exchange, rank.forward.back().exchange);
    EXPECT_EQ(rank.backward.back().slices, rank.forward.back().slices);
    for (size_t s = 0; s + 1 < rank.backward.size(); ++s) EXPECT_FALSE(rank.backward[s].kept);
    for (const Stage& stage : rank.forward) EXPECT_FALSE(stage.kept);
  }
  // Where nothing is remote, nothing is kept.
  for (const RankPlan& rank : make_plan(full_mask(64, 64), config_of(1, {0, 0, true})).ranks()) {
    EXPECT_EQ(rank.backward.size(), 1u);
    EXPECT_FALSE(rank.backward.back().kept);
  }
  EXPECT_THAT([] { make_plan(causal_mask(64, 64), config_of(2, {2, 1, true})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("keep_remote_kv with num_stages_bwd=1 needs num_stages_fwd=1")));
}

TEST(Stages, FewerRowsThanStages) {
  // One remote row in all.
  const Mask mask(4, 4, {AttnSlice::full({0, 1}, {3, 4})});
  DistAttnConfig config = config_of(2, {4, 4, false});
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  const Plan plan = make_plan(mask, config);
  reference::expect_valid(plan);
  EXPECT_EQ(plan.rows_moved(), 1);
}

TEST(Stages, AStageIsOneIntervalOfAFullMask) {
  const Plan plan = make_plan(full_mask(4096, 4096), config_of(1, {}));
  EXPECT_EQ(plan.ranks()[0].slices.size(), 1u);
  DistAttnConfig config = config_of(4, {3, 3, false});
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  const Plan split = make_plan(full_mask(4096, 4096), config);
  // Rank 0 holds the first quarter: one rectangle for itself and one for each stage.
  for (const Stage& stage : split.ranks()[0].forward) EXPECT_EQ(stage.slices.size(), 1u);
}

// One head of dim 1 and v dim 1 at 4 flops a cell forward and 10 backward; bytes 4 + 4 a row; all rates 1.
DistAttnConfig unit_config() {
  DistAttnConfig config;
  config.heads = {1, 1, 1, 1, DType::kFloat32};
  config.cost = {4, 10, 8, 0, 0, 128, 1e30, 0, {}};
  config.reduce_dtype = DType::kFloat32;
  return config;
}

TEST(Cost, ForwardHidesTransfersBehindTheStageBefore) {
  const DistAttnConfig config = unit_config();  // a cell and a row take one second each
  const auto time = [&](const std::vector<StageLoad>& loads) {
    return kv_times(config, {loads}, AttnPass::kForward, false)[0];
  };
  EXPECT_DOUBLE_EQ(time({{10, 0, 0}}).total_s, 10);
  // Arrives at 7, while local work runs to 10.
  EXPECT_DOUBLE_EQ(time({{10, 0, 0}, {5, 7, 1}}).total_s, 15);
  EXPECT_DOUBLE_EQ(time({{10, 0, 0}, {5, 7, 1}}).exposed_s(), 0);
  // Arrives at 14: four seconds of waiting.
  EXPECT_DOUBLE_EQ(time({{10, 0, 0}, {5, 14, 1}}).total_s, 19);
  EXPECT_DOUBLE_EQ(time({{10, 0, 0}, {5, 14, 1}}).exposed_s(), 4);
  // The second cast is posted when the first stage starts (at 14) and arrives at 20, one after its compute ends.
  EXPECT_DOUBLE_EQ(time({{10, 0, 0}, {5, 14, 1}, {1, 6, 1}}).total_s, 21);
}

TEST(Cost, BackwardEndsWithTheLastGradients) {
  const DistAttnConfig config = unit_config();
  const std::vector<StageLoad> loads{{10, 0, 0}, {5, 7, 1}};
  // Computed at 15, then 7 rows of gradients move.
  EXPECT_DOUBLE_EQ(kv_times(config, {loads}, AttnPass::kBackward, false)[0].total_s, 22);
  // Kept rows go first and their gradients hide behind local work.
  EXPECT_DOUBLE_EQ(kv_times(config, {loads}, AttnPass::kBackward, true)[0].total_s, 15);
}

TEST(Cost, OverheadAndLatencyCountPerStageAndCopy) {
  DistAttnConfig config = unit_config();
  config.cost.stage_overhead_s = 0.5;
  config.cost.copy_latency_s = 0.25;
  EXPECT_DOUBLE_EQ(kv_times(config, {{{1, 0, 0}, {1, 4, 2}}}, AttnPass::kForward, false)[0].total_s, 4.5 + 1.5);
}

TEST(Cost, MoreStagesAreChosenWhereTransfersShow) {
  // A slow link: one big stage would wait for everything first.
  DistAttnConfig config = config_of(4, {});
  config.cost.link_bytes_per_s = 2e9;
  config.cost.stage_overhead_s = 1e-9;
  config.cost.copy_latency_s = 0;
  const Plan slow = make_plan(full_mask(16384, 16384), config);
  EXPECT_GT(slow.ranks()[0].forward.size(), 2u);
  // A link for free: every further stage is overhead.
  config.cost.link_bytes_per_s = 1e18;
  config.cost.stage_overhead_s = 1e-3;
  const Plan fast = make_plan(full_mask(16384, 16384), config);
  EXPECT_EQ(fast.ranks()[0].forward.size(), 2u);
  EXPECT_EQ(fast.ranks()[0].backward.size(), 2u);
  EXPECT_LT(fast.predicted.exposed_s, slow.predicted.exposed_s);
}

}  // namespace
}  // namespace tangram
