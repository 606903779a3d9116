// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans whose head groups see different cells.
#include "tangram/head_masks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "reference/movement_check.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

DistAttnConfig config_of(int cp_size, Movement movement) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {16, 8, 64, 64, DType::kBFloat16};
  config.movement.algorithm = movement;
  return config;
}

Dispatch in_order(int cp_size, int64_t seqlen, int chunks_each = 1) {
  Dispatch dispatch{cp_size, seqlen / (cp_size * chunks_each), {}};
  for (int chunk = 0; chunk < cp_size * chunks_each; ++chunk) dispatch.rank_of_chunk.push_back(chunk / chunks_each);
  return dispatch;
}

TEST(HeadMasks, EveryCellOfEveryGroupIsComputedOnceFromRowsThatArrived) {
  std::mt19937 rng(5);
  for (int turn = 0; turn < 90; ++turn) {
    const int cp_size = 2 + turn % 5, groups = std::array{1, 2, 4, 8}[static_cast<size_t>(turn / 3) % 4];
    const int64_t rows_q = cp_size * 12, rows_k = turn % 4 == 0 ? cp_size * 8 : rows_q;
    std::vector<Mask> masks;
    for (int g = 0; g < groups; ++g) {
      masks.emplace_back(rows_q, rows_k, reference::random_disjoint_slices(rng, rows_q, rows_k, 1 + (turn + g) % 6));
    }
    DistAttnConfig config = config_of(cp_size, std::array{Movement::kKv, Movement::kQo, Movement::kAuto}[turn % 3]);
    config.cost = {1e9, 1e11, 1e9, 0, 0};
    config.overlap.num_stages_fwd = turn % 4;
    Dispatch q = in_order(cp_size, rows_q, 4), k = in_order(cp_size, rows_k, 4);
    std::vector<int> ranks = q.rank_of_chunk.expanded();
    std::shuffle(ranks.begin(), ranks.end(), rng);
    q.rank_of_chunk = ranks;
    SCOPED_TRACE("turn " + std::to_string(turn));
    const Plan plan = make_plan(masks, config, q, k);
    EXPECT_EQ(plan.movement()->head_groups, groups);
    ASSERT_NO_FATAL_FAILURE(reference::expect_movement(plan, masks));
    EXPECT_EQ(make_plan(masks, config, q, k), plan) << "the same arguments give the same plan";
    int64_t area = 0, all = 0;
    for (const RankPlan& rank : plan.rank_totals()) area += rank.area;
    for (const Mask& mask : masks) all += mask.area();
    EXPECT_EQ(area, all);
    EXPECT_EQ(plan.mask.area(), all);
  }
}

int64_t fetched(const std::vector<MovementRank>& ranks, int64_t MovementRank::* rows) {
  int64_t sum = 0;
  for (const MovementRank& rank : ranks) sum += rank.*rows;
  return sum;
}

// One group sees its own rank's keys alone, the other everything.
TEST(HeadMasks, OnlyWhatAGroupSeesMoves) {
  constexpr int64_t kSeqlen = 4096;
  const std::vector<int64_t> borders = {0, 1024, 2048, 3072, 4096};
  const std::vector<Mask> masks = {varlen_mask(borders, true), full_mask(kSeqlen, kSeqlen)};
  const Dispatch rows = in_order(4, kSeqlen);
  const Plan kv = make_plan(masks, config_of(4, Movement::kKv), rows, rows);
  EXPECT_EQ(fetched(kv.movement()->forward, &MovementRank::remote_kv_rows), 3 * kSeqlen);  // of the second group
  EXPECT_EQ(fetched(kv.movement()->forward, &MovementRank::remote_q_rows), 0);
  const Plan qo = make_plan(masks, config_of(4, Movement::kQo), rows, rows);
  EXPECT_EQ(fetched(qo.movement()->forward, &MovementRank::remote_kv_rows), 0);
  EXPECT_EQ(fetched(qo.movement()->forward, &MovementRank::remote_q_rows), 3 * kSeqlen);
  EXPECT_NEAR(kv.balance(), 1, 1e-3);
}

// Rows in order under causal masks: whole groups balance what neither side alone can.
TEST(HeadMasks, WholeGroupsMoveWhereThatBalances) {
  constexpr int64_t kSeqlen = 65536;
  std::vector<Mask> masks;
  for (int g = 0; g < 8; ++g) {
    masks.push_back(g % 2 == 0 ? causal_mask(kSeqlen, kSeqlen) : sliding_window_mask(kSeqlen, {kSeqlen / 2, 0}));
  }
  const Dispatch rows = in_order(8, kSeqlen);
  const auto step_s = [&](Movement movement) {
    const Plan plan = make_plan(masks, config_of(8, movement), rows, rows);
    return plan.predicted.forward_s + plan.predicted.backward_s;
  };
  const double best = step_s(Movement::kAuto);
  EXPECT_LT(best, 0.8 * step_s(Movement::kKv));
  EXPECT_LT(best, 0.8 * step_s(Movement::kQo));
}

TEST(HeadMasks, RowsAreAssignedAsForTheLargestMask) {
  const std::vector<Mask> masks = {sliding_window_mask(4096, {64, 0}), causal_mask(4096, 4096)};
  DistAttnConfig config = config_of(4, Movement::kAuto);
  const Plan plan = make_plan(masks, config);
  const DistAttnConfig of_rows = config_of(4, Movement::kKv);
  EXPECT_EQ(plan.q_dispatch, make_plan(masks[1], of_rows).q_dispatch);
  EXPECT_EQ(plan, make_plan(masks, config, plan.q_dispatch, plan.k_dispatch));
  EXPECT_EQ(num_head_masks(plan), 2);
  EXPECT_THAT(explain(plan), ::testing::HasSubstr("mask: 2 of as many head groups, 4096 x 4096 rows"));
  EXPECT_EQ(make_plan(std::vector<Mask>{masks[1]}, of_rows), make_plan(masks[1], of_rows));
  EXPECT_EQ(num_head_masks(make_plan(masks[1], of_rows)), 1);
}

TEST(HeadMasks, RefusesWhatItCannotPlan) {
  const Mask mask = causal_mask(64, 64);
  const Dispatch rows = in_order(4, 64);
  const auto refused = [&](const std::vector<Mask>& masks, const DistAttnConfig& config, const char* text) {
    try {
      make_plan(masks, config, rows, rows);
      ADD_FAILURE() << "expected: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  refused({}, config_of(4, Movement::kQo), "masks must not be empty");
  refused({mask, causal_mask(32, 32)}, config_of(4, Movement::kQo),
          "masks must be of one size (got 64 x 64 and 32 x 32)");
  refused({mask, mask, mask}, config_of(4, Movement::kQo),
          "the number of masks must divide num_heads_kv (got 3 and num_heads_kv=8)");
  refused({mask, mask}, config_of(4, Movement::kBinaryGreedy), "need movement.algorithm kv, qo or auto");
  DistAttnConfig config = config_of(4, Movement::kQo);
  config.movement.head_groups = 4;
  refused({mask, mask}, config, "movement.head_groups must be 0 or the number of masks (got 4 and 2)");
  config = config_of(4, Movement::kKv);
  config.strategy.name = Strategy::kRing;
  refused({mask, mask}, config, "need strategy tangram, or auto, which takes it (got ring)");
  const Plan plan = make_plan(std::vector<Mask>{mask, mask}, config_of(4, Movement::kQo), rows, rows);
  // It said that a dispatch did not cover the sequence, as if the text were damaged.
  EXPECT_THAT([&] { plan_from_json(plan_to_json(plan)); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  ::testing::HasSubstr("plans of masks of head groups cannot be read back")));
}

}  // namespace
}  // namespace tangram
