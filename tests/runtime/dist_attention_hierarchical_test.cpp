// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention over ranks on several nodes, which send rows to a node once and add partial results there first.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "plan/nodes/node_stages.hpp"
#include "runtime/rank_suite.hpp"
#include "tangram/hierarchical_group.hpp"
#include "tangram/local_group.hpp"

namespace tangram {
namespace {

constexpr double kTimeout_s = 60;

struct Nodes {
  int size;
  int per_node;
  bool has_levels;  // groups of their own within nodes and across them
};

class DistAttentionOverNodes : public ::testing::TestWithParam<Nodes> {
 protected:
  static void run(void (*check)(Communicator&)) {
    const auto [size, per_node, has_levels] = GetParam();
    const int num_nodes = size / per_node;
    std::vector<std::unique_ptr<LocalGroup>> nodes, places;
    for (int i = 0; i < num_nodes; ++i) nodes.push_back(std::make_unique<LocalGroup>(per_node, kTimeout_s));
    for (int i = 0; i < per_node; ++i) places.push_back(std::make_unique<LocalGroup>(num_nodes, kTimeout_s));
    run_local_ranks(
        size,
        [&](Communicator& world) {
          const int node = world.rank() / per_node, place = world.rank() % per_node;
          HierarchicalConfig config{.ranks_per_node = per_node};
          if (has_levels) {
            config.node = &nodes[static_cast<size_t>(node)]->communicator(place);
            config.across = &places[static_cast<size_t>(place)]->communicator(node);
          }
          HierarchicalGroup group(world, config);
          check(group.communicator());
        },
        kTimeout_s);
  }
};

TEST_P(DistAttentionOverNodes, StrategiesEqualSingleRank) { run(testing::check_strategies); }

TEST_P(DistAttentionOverNodes, MovedQueriesEqualSingleRank) { run(testing::check_moved_queries); }

// Of plans that know nodes. K and V of a row are a row each; gradients go back the same way.
TEST_P(DistAttentionOverNodes, RowsCrossOnceAsPlansCountThem) {
  const auto [size, per_node, has_levels] = GetParam();
  const NodeShape nodes{size, per_node};
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 37, 180, 205, 360}, true);
  testing::StepOptions options;
  options.heads = {2, 1, 4, 3, DType::kFloat32};
  DistAttnConfig config;
  config.cp_size = size;
  config.heads = options.heads;
  config.cost.ranks_per_node = per_node;
  const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
  const int64_t planned = traffic_of(node_rows(plan->ranks, nodes), nodes).total();
  ASSERT_GT(planned, 0);
  const testing::StepInputs inputs = testing::make_inputs(mask, options);
  std::vector<int64_t> crossed(static_cast<size_t>(size));
  run_local_ranks(
      size,
      [&](Communicator& world) {
        HierarchicalGroup group(world, {.ranks_per_node = per_node});
        const testing::DenseBackend backend;
        DistAttention attention(plan, group.communicator(), backend);
        testing::StepResults results = testing::make_results(mask.seqlen_q(), mask.seqlen_k(), options);
        testing::rank_step(options, inputs, world, attention, results);
        crossed[static_cast<size_t>(world.rank())] = group.across_nodes().rows_received;
        if (world.rank() == 0)
          testing::expect_close(results, testing::single_step(mask, options, inputs, backend), 2e-5);
      },
      kTimeout_s);
  // K and V, in both passes, and the gradients of both.
  EXPECT_EQ(std::accumulate(crossed.begin(), crossed.end(), int64_t{0}), 6 * planned);
}

std::string name_of(const ::testing::TestParamInfo<Nodes>& info) {
  const auto [size, per_node, has_levels] = info.param;
  return std::to_string(size / per_node) + "Of" + std::to_string(per_node) + (has_levels ? "WithLevels" : "");
}

INSTANTIATE_TEST_SUITE_P(Nodes, DistAttentionOverNodes, ::testing::Values(Nodes{4, 2, false}, Nodes{6, 3, true}),
                         name_of);

}  // namespace
}  // namespace tangram
