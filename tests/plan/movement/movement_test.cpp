// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

#include "reference/mask_cases.hpp"
#include "reference/movement_check.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

DistAttnConfig config_of(int cp_size, Movement movement, int head_groups) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {8, 4, 64, 64, DType::kBFloat16};
  config.movement = {movement, head_groups};
  return config;
}

constexpr Movement kMovements[] = {Movement::kQo, Movement::kAuto};

TEST(Movement, RandomMasksAreComputedOnceFromRowsThatArrived) {
  std::mt19937 rng(11);
  int num_auto_moved = 0;
  for (int turn = 0; turn < 120; ++turn) {
    const int cp_size = 2 + turn % 7;
    const int64_t rows_q = cp_size * 12, rows_k = turn % 3 == 0 ? cp_size * 8 : rows_q;
    const Mask mask(rows_q, rows_k, reference::random_disjoint_slices(rng, rows_q, rows_k, 1 + turn % 9));
    DistAttnConfig config = config_of(cp_size, kMovements[static_cast<size_t>(turn) % std::size(kMovements)],
                                      std::array{1, 2, 4, 0}[static_cast<size_t>(turn / 2) % 4]);
    config.dispatch = {DispatchAlgorithm::kRandom, 4, static_cast<uint64_t>(turn)};
    // Small masks: without fixed costs, and slow enough to compute that balance counts.
    config.cost = {turn % 5 == 0 ? 1e9 : 1e12, 1e11, 1e9, 0, 0};
    config.overlap.num_stages_fwd = turn % 4;
    SCOPED_TRACE(std::string(to_string(config.movement.algorithm)) + " turn " + std::to_string(turn));
    const Plan plan = make_plan(mask, config);
    if (plan.movement.empty()) {  // nothing is gained by moving queries
      ASSERT_EQ(config.movement.algorithm, Movement::kAuto);
      ASSERT_FALSE(plan.ranks[0].forward.empty());
      continue;
    }
    num_auto_moved += config.movement.algorithm == Movement::kAuto ? 1 : 0;
    if (config.movement.head_groups > 0) {
      EXPECT_EQ(plan.movement.head_groups, config.movement.head_groups);
    }
    ASSERT_NO_FATAL_FAILURE(reference::expect_movement(plan, {mask}));
    EXPECT_EQ(make_plan(mask, config), plan) << "the same arguments give the same plan";
  }
  EXPECT_GE(num_auto_moved, 20);
}

TEST(Movement, QueriesGoToTheirKeys) {
  const Plan plan = make_plan(causal_mask(64, 64), config_of(4, Movement::kQo, 1));
  for (const MovementRank& rank : plan.movement.forward) {
    EXPECT_EQ(rank.remote_kv_rows, 0);
    EXPECT_EQ(rank.kv_rows, 16);
    EXPECT_GT(rank.remote_q_rows, 0);
  }
}

TEST(Movement, JsonMakesThePlanAgain) {
  const Plan plan = make_plan(causal_mask(64, 64), config_of(4, Movement::kQo, 2));
  EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
}

TEST(Movement, RefusesHeadGroupsThatDoNotDivide) {
  for (const int groups : {3, 8, -1}) {
    EXPECT_THROW(make_plan(causal_mask(64, 64), config_of(4, Movement::kQo, groups)), InvalidArgument) << groups;
  }
  EXPECT_THROW(parse_movement("sideways"), InvalidArgument);
  DistAttnConfig ring = config_of(4, Movement::kQo, 1);
  ring.strategy.name = Strategy::kRing;
  EXPECT_THROW(make_plan(causal_mask(64, 64), ring), InvalidArgument);
}

}  // namespace
}  // namespace tangram
