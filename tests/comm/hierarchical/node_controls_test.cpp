// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The groups of nodes and rails out of one of all ranks, over processes that claim to be on two nodes, or do not.
#include "comm/hierarchical/node_controls.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/all_gather.hpp"
#include "comm/nodes/listener.hpp"
#include "comm/process_group.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_processes;
using testing::TemporaryFolder;

void claim_node(int node) {
  Env env = Env::get();
  env.node_id = "node_" + std::to_string(node);
  Env::set(env);
}

class NodeControlsOf : public ::testing::TestWithParam<bool> {};

TEST_P(NodeControlsOf, ConnectNodesAndRails) {
  const bool are_nodes = GetParam();
  const TemporaryFolder folder;
  const auto outcomes = run_processes(6, [&](int rank) {
    const NodeLayout nodes{6, 2};
    if (are_nodes) claim_node(nodes.node_of(rank));
    SocketGroup group({rank, 6, "unix:" + folder.path(), 30});
    const NodeMap map = NodeMap::of(group.communicator());
    EXPECT_EQ(map.num_nodes(), are_nodes ? 3 : 1);
    NodeControls controls(group.communicator(), nodes, map, 30);
    const int node = nodes.node_of(rank), place = nodes.place_of(rank);
    EXPECT_EQ(controls.node().rank(), place);
    EXPECT_EQ(controls.across().rank(), node);
    EXPECT_THAT(all_gather(controls.node(), rank, "node"), ElementsAre(2 * node, 2 * node + 1));
    EXPECT_THAT(all_gather(controls.across(), rank, "rail"), ElementsAre(place, 2 + place, 4 + place));
    EXPECT_EQ(host_address(controls.across()), "127.0.0.1");
    group.communicator().barrier("done");
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_text, "");
  }
}
INSTANTIATE_TEST_SUITE_P(Nodes, NodeControlsOf, ::testing::Bool(),
                         [](const auto& param_info) { return param_info.param ? "SeveralNodes" : "PartsOfOneNode"; });

TEST(NodeControls, AFolderThatCannotBeMadeIsAnErrorOnAllRanks) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(4, [&](int rank) {
    if (rank == 2) ::setenv("TMPDIR", "/no/such/folder", 1);
    SocketGroup group({rank, 4, "unix:" + folder.path(), 30});
    NodeControls(group.communicator(), {4, 2}, NodeMap::of(group.communicator()), 30);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.error_type, "CommError");
    EXPECT_THAT(outcome.error_text, HasSubstr("rank 2 must be able to make a temporary folder"));
  }
}

}  // namespace
}  // namespace tangram::comm
