// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the planner thinks of queries that move, held against two H200 (docs/results/movement.md and
// docs/devlog/2026-11-26-changing-blocks.md).

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "support/sample.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

DistAttnConfig two_gpus(int heads_q, int heads_kv, Movement movement) {
  DistAttnConfig config;
  config.cp_size = 2;
  config.heads = {heads_q, heads_kv, 128, 128, DType::kBFloat16};
  config.movement.algorithm = movement;
  return config;
}

/// Each query block sees its own key block and others, `width` in all: at random, or `near` ones the more often.
Mask changing_blocks(int64_t rows, int64_t block, int width, bool near = false) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto count = static_cast<int32_t>(rows / block);
  std::vector<int32_t> indices;
  for (int32_t q = 0; q < count; ++q) {
    std::vector<std::pair<double, int32_t>> scores;
    for (int32_t k = 0; k < count; ++k) {
      const double weight = near ? std::max(1, std::abs(q - k)) : 1;
      scores.emplace_back(q == k ? -1 : uniform(rng) * weight, k);
    }
    std::sort(scores.begin(), scores.end());
    for (int i = 0; i < width; ++i) indices.push_back(scores[static_cast<size_t>(i)].second);
  }
  return mask_from_block_indices({rows, rows, block, block, indices, {}, false});
}

// Queries moved, as 0.88 instead of 1.06 ms were predicted of both passes, and 0.98 instead of 1.13 near the diagonal.
// Measured were 2.43 instead of 1.37, and twice the time near the diagonal.
TEST(MovementMeasured, AutoKeepsToKeysWhereBlocksOfSixteenKeyHeadsTookTwiceTheTime) {
  for (const bool near : {false, true}) {
    const Plan plan = make_plan(changing_blocks(16384, 128, 15, near), two_gpus(16, 16, Movement::kAuto));
    EXPECT_EQ(plan.movement(), nullptr) << (near ? "near the diagonal" : "anywhere");
  }
}

// Measured 13.70 instead of 11.12 ms; and of 2,048 rows that see all and are seen by all, 18.83 instead of 15.59.
TEST(MovementMeasured, AutoKeepsToKeysOfScatteredBlocksOfManyKeyHeads) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  const Plan changing = make_plan(changing_blocks(32768, 512, 4), two_gpus(64, 64, Movement::kAuto));
  EXPECT_EQ(changing.movement(), nullptr);
  const Mask first(32768, 32768, {AttnSlice::full({0, 2048}, {0, 32768}), AttnSlice::full({2048, 32768}, {0, 2048})});
  const Plan of_first = make_plan(first, two_gpus(64, 64, Movement::kAuto));
  EXPECT_EQ(of_first.movement(), nullptr);
}

// Measured 0.72 of the time, since work is even then.
TEST(MovementMeasured, AutoMovesQueriesOfCausalRowsInOrder) {
  DistAttnConfig config = two_gpus(64, 8, Movement::kAuto);
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  const Plan plan = make_plan(causal_mask(32768, 32768), config);
  ASSERT_NE(plan.movement(), nullptr);
  EXPECT_LE(plan.balance(), 1.01);
}

// Milliseconds that were measured of passes in which queries move. Nothing is fitted to them: bytes come from what
// programs do, and kernels at their power limit are up to 10 % slower than the constants say; so 15 %.
TEST(MovementMeasured, PassesTakeAboutWhatTwoGpusTook) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  constexpr double kTolerance = 0.15;
  const auto expect = [&](const Plan& plan, double forward_ms, double backward_ms) {
    ASSERT_NE(plan.movement(), nullptr);
    EXPECT_NEAR(plan.predicted.forward_s * 1e3, forward_ms, kTolerance * forward_ms);
    EXPECT_NEAR(plan.predicted.backward_s * 1e3, backward_ms, kTolerance * backward_ms);
  };
  expect(make_plan(changing_blocks(32768, 512, 4), two_gpus(64, 64, Movement::kQo)), 3.83, 10.67);
  const Mask first(32768, 32768, {AttnSlice::full({0, 2048}, {0, 32768}), AttnSlice::full({2048, 32768}, {0, 2048})});
  expect(make_plan(first, two_gpus(64, 64, Movement::kQo)), 5.30, 13.79);
  DistAttnConfig in_order = two_gpus(64, 8, Movement::kAuto);
  in_order.dispatch.algorithm = DispatchAlgorithm::kSequential;
  expect(make_plan(causal_mask(32768, 32768), in_order), 14.78, 39.69);
}

}  // namespace
}  // namespace tangram
