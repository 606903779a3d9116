// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "reference/mask_cases.hpp"
#include "reference/movement_check.hpp"
#include "support/sample.hpp"
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

constexpr Movement kMovements[] = {Movement::kQo, Movement::kAuto, Movement::kGreedyRandomGrid, Movement::kBinaryGreedy,
                                   Movement::kNetworkFlow};

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
    config.cost = {turn / 5 % 2 == 0 ? 1e9 : 1e12, 1e11, 1e9, 0, 0};
    config.overlap.num_stages_fwd = turn % 4;
    SCOPED_TRACE(std::string(to_string(config.movement.algorithm)) + " turn " + std::to_string(turn));
    const Plan plan = make_plan(mask, config);
    if (plan.movement() == nullptr) {  // nothing is gained by moving queries
      ASSERT_EQ(config.movement.algorithm, Movement::kAuto);
      ASSERT_FALSE(plan.ranks()[0].forward.empty());
      continue;
    }
    num_auto_moved += config.movement.algorithm == Movement::kAuto ? 1 : 0;
    if (config.movement.head_groups > 0) {
      EXPECT_EQ(plan.movement()->head_groups, config.movement.head_groups);
    }
    ASSERT_NO_FATAL_FAILURE(reference::expect_movement(plan, {mask}));
    EXPECT_EQ(make_plan(mask, config), plan) << "the same arguments give the same plan";
  }
  EXPECT_GE(num_auto_moved, 6);
}

// What all ranks receive in a step, and the largest share of a pass's area on a rank.
double bytes_received(const Plan& plan) {
  if (plan.movement() != nullptr) {
    const GridTraffic traffic = movement_traffic(plan, GridCall{});
    return static_cast<double>(traffic.forward_bytes + traffic.backward_bytes);
  }
  // 4 * head_dim bytes of k and v twice, and of their gradients in float32.
  return static_cast<double>(plan.rows_moved() * plan.config.heads.num_heads_kv * plan.config.heads.head_dim * 16);
}

double balance_of(const Plan& plan, const std::vector<MovementRank>& ranks) {
  if (plan.movement() == nullptr) return plan.balance();
  int64_t most = 0, sum = 0;
  for (const MovementRank& rank : ranks) {
    most = std::max(most, rank.area);
    sum += rank.area;
  }
  return static_cast<double>(most) * plan.cp_size() / static_cast<double>(sum);
}

// In each pass: one that balances only one of them is not to be compared by bytes with one that balances both.
bool balances_as_well(const Plan& a, const Plan& b) {
  return balance_of(a, a.movement()->forward) <= balance_of(b, b.movement()->forward) + 0.01 &&
         balance_of(a, a.movement()->backward) <= balance_of(b, b.movement()->backward) + 0.01;
}

double step_s(const Plan& plan) { return plan.predicted.forward_s + plan.predicted.backward_s; }

struct Compared {
  std::string name;
  Plan ours;
  Plan other;
};

// Ours beside every published algorithm, on every published mask that is small enough, with rows that the planner
// assigned and with rows in sequence order, which a mask that changes finds as they are. One in seven under sanitizers.
std::vector<Compared> compare_with_published(int64_t max_seqlen, Movement algorithm = Movement::kAuto) {
  std::vector<Compared> result;
  int number = 0;
  for (const reference::MaskCase& c : reference::load_mask_cases("dist_masks.json")) {
    if (c.seqlen > max_seqlen) continue;
    const Mask mask(c.seqlen, c.seqlen, c.slices);
    for (int i = 0; i < 16; ++i) {
      if (support::kSanitized && number++ % 7 != 0) continue;
      const int heads_kv = i & 1 ? 8 : 64, head_groups = i & 2 ? 0 : 1;
      DistAttnConfig config;
      config.cp_size = i & 4 ? 4 : 8;
      config.heads = {64, heads_kv, 128, 128, DType::kBFloat16};
      if (i & 8) config.dispatch = {DispatchAlgorithm::kSequential, c.seqlen / config.cp_size, 0};
      const Plan only_kv = make_plan(mask, config);
      const auto plan_with = [&](Movement movement) {
        config.movement = {movement, movement == Movement::kKv ? 0 : head_groups};
        return make_plan(mask, config, only_kv.q_dispatch, only_kv.k_dispatch);
      };
      const Plan ours = plan_with(algorithm);
      for (const Movement other : {Movement::kKv, Movement::kQo, Movement::kGreedyRandomGrid, Movement::kBinaryGreedy,
                                   Movement::kNetworkFlow}) {
        result.push_back(
            {c.name + " " + std::string(to_string(other)) + " " + std::to_string(i), ours, plan_with(other)});
      }
    }
  }
  return result;
}

constexpr int kNumCompared = support::kSanitized ? 150 : 1040;  // up to 32,768 rows

// Choices within 2 % count as equally fast.
TEST(Movement, OursIsNoSlowerThanPublishedAlgorithms) {
  for (const Compared& c : compare_with_published(16384)) {
    EXPECT_LE(step_s(c.ours), 1.02 * (1 + 1e-9) * step_s(c.other)) << c.name;
  }
}

// At equal balance a published algorithm moves fewer bytes only where that is predicted to take longer.
TEST(Movement, OursMovesNoMoreThanPublishedAlgorithmsThatAreAsFast) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  int num_fewer = 0, num_compared = 0;
  for (const Compared& c : compare_with_published(32768)) {
    ++num_compared;
    const bool fewer = bytes_received(c.other) < bytes_received(c.ours) * (1 - 1e-9);
    if (!fewer || !balances_as_well(c.other, c.ours)) continue;
    ++num_fewer;
    EXPECT_GT(step_s(c.other), 1.005 * step_s(c.ours)) << c.name;
  }
  EXPECT_EQ(num_compared, kNumCompared);
  EXPECT_LE(num_fewer, 120) << "K/V alone, mostly, which moves more";
}

// Where bytes are what counts, on every mask, as many ranks and heads, none moves fewer that balances as well.
TEST(Movement, LeastBytesAreNoMoreThanThoseOfPublishedAlgorithms) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  int num_compared = 0, num_fewer_than_all = 0;
  for (const Compared& c : compare_with_published(32768, Movement::kLeastBytes)) {
    ++num_compared;
    const double ours = bytes_received(c.ours), other = bytes_received(c.other);
    if (balances_as_well(c.other, c.ours)) {
      EXPECT_LE(ours, other * (1 + 1e-9)) << c.name;
    }
    if (ours < other * (1 - 1e-9)) ++num_fewer_than_all;
  }
  EXPECT_EQ(num_compared, kNumCompared);
  EXPECT_GE(num_fewer_than_all, kNumCompared * 48 / 100);
}

int64_t bytes_of(const Plan& plan) {
  const GridTraffic traffic = movement_traffic(plan, GridCall{});
  return traffic.forward_bytes + traffic.backward_bytes;
}

// Heads of a full mask split over a cluster move a fraction of what moving all keys takes.
TEST(Movement, ClustersMoveAFractionOfTheKeys) {
  DistAttnConfig config;
  config.cp_size = 64;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.movement.algorithm = Movement::kAuto;
  config.cost.link_bytes_per_s = 5e9;  // too slow to hide the keys
  const Plan plan = make_plan(full_mask(65536, 65536), config);
  ASSERT_NE(plan.movement(), nullptr);
  // The K/V rows of 63 ranks to every rank in both passes, and their gradients in float32.
  const int64_t kv_bytes = int64_t{63} * 65536 * 8 * 256 * (2 + 2 + 4);
  EXPECT_LT(bytes_of(plan), kv_bytes * 3 / 10);
  EXPECT_LE(plan.balance(), 1.001);
}

// Rows in sequence order under a causal mask: the last rank has twice the mean, unless work moves.
TEST(Movement, WorkMovesToBalanceRowsThatCannot) {
  DistAttnConfig config;
  config.cp_size = 8;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.dispatch = {DispatchAlgorithm::kSequential, 16384, 0};
  EXPECT_GT(make_plan(causal_mask(131072, 131072), config).balance(), 1.8);
  config.movement.algorithm = Movement::kAuto;
  for (const int head_groups : {0, 1}) {
    config.movement.head_groups = head_groups;
    EXPECT_LE(make_plan(causal_mask(131072, 131072), config).balance(), 1.03) << head_groups;
  }
}

// Time as a ratio in one run: four times the documents must not take sixteen times as long, with room for noise.
TEST(Movement, PlanningGrowsBelowQuadratic) {
  const auto seconds = [](int64_t documents) {
    std::vector<int64_t> borders;
    for (int64_t i = 0; i <= documents; ++i) borders.push_back(i * (1 << 18) / documents);
    const Mask mask = varlen_mask(borders, true);
    DistAttnConfig config = config_of(32, Movement::kAuto, 0);
    config.dispatch = {DispatchAlgorithm::kSequential, (1 << 18) / 32, 0};
    double best = 1e9;
    for (int turn = 0; turn < 3; ++turn) {
      const std::clock_t begin = std::clock();
      make_plan(mask, config);
      best = std::min(best, static_cast<double>(std::clock() - begin));
    }
    return best;
  };
  EXPECT_LT(seconds(16000), 12 * std::max(seconds(4000), 0.001));
}

TEST(Movement, QueriesGoToTheirKeys) {
  DistAttnConfig config = config_of(4, Movement::kQo, 1);
  config.dispatch = {DispatchAlgorithm::kZigzag, 8, 0};  // in sequence no other rank sees the last keys
  const Plan plan = make_plan(causal_mask(64, 64), config);
  for (const MovementRank& rank : plan.movement()->forward) {
    EXPECT_EQ(rank.remote_kv_rows, 0);
    EXPECT_EQ(rank.kv_rows, 16);
    EXPECT_GT(rank.remote_q_rows, 0);
  }
}

TEST(Movement, JsonMakesThePlanAgain) {
  const Plan plan = make_plan(causal_mask(64, 64), config_of(4, Movement::kQo, 2));
  EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
}

// By hand: 8 heads of 64; q in bfloat16, out, lse, delta and dq in float32.
TEST(Movement, ExplainsBytesByKind) {
  const std::string text = explain(make_plan(full_mask(65536, 65536), config_of(4, Movement::kQo, 1)));
  const int64_t rows = int64_t{3} * 65536;  // every query visits the three other ranks
  EXPECT_NE(text.find(std::to_string(rows) + " query rows and 0 K/V rows"), std::string::npos) << text;
  EXPECT_NE(text.find(", q 192.0 MiB, out and lse 390.0 MiB, k and v 0.0 MiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find(", q, dout, lse and delta 396.0 MiB, dq 384.0 MiB, k and v 0.0 MiB, dk and dv 0.0 MiB\n"),
            std::string::npos)
      << text;
}

TEST(Movement, RefusesHeadGroupsThatDoNotDivideOrHaveNoUse) {
  const Mask mask = causal_mask(64, 64);
  for (const int groups : {3, 8, -1}) {
    EXPECT_THROW(make_plan(mask, config_of(4, Movement::kQo, groups)), InvalidArgument) << groups;
  }
  const Plan plain = make_plan(mask, config_of(4, Movement::kKv, 0));
  EXPECT_THROW(make_plan(mask, config_of(4, Movement::kKv, 2)), InvalidArgument);
  EXPECT_THROW(make_plan(mask, config_of(4, Movement::kKv, 2), plain.q_dispatch, plain.k_dispatch), InvalidArgument);
  EXPECT_THROW(parse_movement("sideways"), InvalidArgument);
  DistAttnConfig ring = config_of(4, Movement::kQo, 1);
  ring.strategy.name = Strategy::kRing;
  EXPECT_THROW(make_plan(causal_mask(64, 64), ring), InvalidArgument);
}

}  // namespace
}  // namespace tangram
