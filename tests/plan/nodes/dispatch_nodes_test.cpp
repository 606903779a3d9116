// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/nodes/dispatch_nodes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "plan/nodes/even_nodes.hpp"
#include "plan/nodes/node_tables.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

DistAttnConfig config_of(int num_nodes, int per_node) {
  DistAttnConfig config;
  config.cp_size = num_nodes * per_node;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.cost.ranks_per_node = per_node;
  return config;
}

// Log-normal lengths, a quarter of all rows at most.
Mask documents(int64_t rows, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<int64_t> borders{0};
  while (borders.back() < rows) {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(rng() >> 8) / (1 << 24);
    const auto length = static_cast<int64_t>(std::exp(7.5 + 1.6 * (sum - 6)));
    borders.push_back(std::min({rows, borders.back() + rows / 4, borders.back() + 1 + length}));
  }
  return varlen_mask(borders, true);
}

NodeTraffic traffic_of(const Plan& plan, const NodeShape& nodes) {
  return traffic_of(node_rows(plan.ranks(), nodes), nodes);
}

TEST(DispatchNodes, OneNodeIsPlannedAsIfThereWereNone) {
  for (const Mask& mask : {documents(16384, 1), causal_mask(16384, 16384), sliding_window_mask(16384, {512, 0})}) {
    DistAttnConfig config = config_of(1, 8);
    Plan with = make_plan(mask, config);
    config.cost.ranks_per_node = 0;
    const Plan without = make_plan(mask, config);
    with.config = without.config;
    EXPECT_EQ(with, without);
  }
}

TEST(DispatchNodes, FewerRowsCrossThanOfFlatPlansAndAreasBalanceAlike) {
  const NodeShape nodes{32, 8};
  int64_t flat_rows = 0, rows = 0, flat_busiest = 0, busiest = 0;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    const Mask mask = documents(131072, seed);
    DistAttnConfig config = config_of(4, 8);
    const Plan plan = make_plan(mask, config);
    config.cost.ranks_per_node = 0;
    const Plan flat = make_plan(mask, config);
    flat_rows += traffic_of(flat, nodes).total();
    flat_busiest += traffic_of(flat, nodes).busiest();
    rows += traffic_of(plan, nodes).total();
    busiest += traffic_of(rails_of(plan), nodes).busiest();
    EXPECT_LE(plan.balance(), std::max(1.011, flat.balance() + 0.001));
    for (int r = 0; r < 32; ++r) {
      int64_t size = 0;
      for (const Range& range : plan.q_dispatch.rows_of_rank(r)) size += range.size();
      EXPECT_EQ(size, 4096);
    }
  }
  EXPECT_LT(rows, flat_rows * 0.6);
  EXPECT_LT(busiest, flat_busiest * 0.5);
}

TEST(DispatchNodes, CausalMasksAndWindowsAreNoWorse) {
  const NodeShape nodes{32, 8};
  for (const Mask& mask : {causal_mask(131072, 131072), full_mask(131072, 131072),
                           sliding_window_mask(131072, {1024, 0}), sliding_window_mask(131072, {20'000, 0})}) {
    DistAttnConfig config = config_of(4, 8);
    const Plan plan = make_plan(mask, config);
    config.cost.ranks_per_node = 0;
    const Plan flat = make_plan(mask, config);
    EXPECT_LE(traffic_of(plan, nodes).total(), traffic_of(flat, nodes).total());
    EXPECT_LE(traffic_of(rails_of(plan), nodes).busiest(), traffic_of(flat, nodes).busiest());
    EXPECT_LE(plan.balance(), flat.balance() + 0.002);
  }
}

TEST(DispatchNodes, ChunkSizesOfTheCallerStay) {
  DistAttnConfig config = config_of(4, 2);
  config.dispatch = {DispatchAlgorithm::kTangram, 64, 0};
  const Plan plan = make_plan(documents(16384, 3), config);
  EXPECT_EQ(plan.q_dispatch.chunk_size, 64);
  EXPECT_EQ(plan.q_dispatch.num_chunks(), 256);
}

TEST(EvenNodes, LowerTheLargestLoadAndKeepRowsAndAreas) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const Mask mask = documents(65536, seed);
    DistAttnConfig config = config_of(8, 1);
    config.cost.ranks_per_node = 0;
    config.dispatch.algorithm = DispatchAlgorithm::kTangram;
    const Plan before = make_plan(mask, config);
    const NodeShape nodes{8, 1};
    const Dispatch evened = even_nodes(mask, before.q_dispatch, {.tolerance = 0.012, .num_trials = 2000});
    const Plan after = make_plan(mask, config, evened, evened);
    const auto fourth = [&](const Plan& plan) {
      const NodeTraffic traffic = traffic_of(plan, nodes);
      double sum = 0;
      for (const auto* loads : {&traffic.sent, &traffic.received}) {
        for (const int64_t load : *loads) sum += std::pow(static_cast<double>(load), 4);
      }
      return sum;
    };
    EXPECT_LT(fourth(after), fourth(before));
    EXPECT_LE(traffic_of(after, nodes).busiest(), traffic_of(before, nodes).busiest());
    EXPECT_LE(after.balance(), std::max(before.balance(), 1.0121));
    EXPECT_EQ(evened, even_nodes(mask, before.q_dispatch, {.tolerance = 0.012, .num_trials = 2000}));
  }
}

}  // namespace
}  // namespace tangram
