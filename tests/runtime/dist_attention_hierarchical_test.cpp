// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention over ranks on several nodes, which send rows to a node once and add partial results there first.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

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

std::string name_of(const ::testing::TestParamInfo<Nodes>& info) {
  const auto [size, per_node, has_levels] = info.param;
  return std::to_string(size / per_node) + "Of" + std::to_string(per_node) + (has_levels ? "WithLevels" : "");
}

INSTANTIATE_TEST_SUITE_P(Nodes, DistAttentionOverNodes, ::testing::Values(Nodes{4, 2, false}, Nodes{6, 3, true}),
                         name_of);

}  // namespace
}  // namespace tangram
