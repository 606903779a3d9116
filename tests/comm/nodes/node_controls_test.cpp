// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The groups of nodes and rails out of one of all ranks, over processes that claim to be on two nodes, or do not.
#include "comm/nodes/node_controls.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "comm/all_gather.hpp"
#include "comm/device/control_links.hpp"
#include "comm/device/forged_hosts.hpp"
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

// Two nodes of two ranks on hosts of their own, whose only way to each other is a cable.
TEST(NodeControls, RailsBetweenHostsNoticeThatTheCableIsCut) {
  constexpr double kTimeout_s = 2;
  const auto on_both_hosts = [](const testing::ForgedHosts& hosts, const std::string& folder) {
    const NodeLayout nodes{4, 2};
    Listener listener = listen_at_host(testing::ForgedHosts::kAddress[0]);
    const auto outcomes = run_processes(4, [&](int rank) {
      const int node = nodes.node_of(rank);
      hosts.enter(node);
      claim_node(node);
      SocketGroupConfig config{rank, 4, "tcp:" + listener.address, 30, std::string(32, 's')};
      if (rank == 0) config.listener = ::dup(listener.fd.get());
      listener.fd = UniqueFd();
      SocketGroup world(config);
      NodeControls controls(world.communicator(), nodes, NodeMap::of(world.communicator()), 30);
      EXPECT_EQ(host_address(controls.across()), testing::ForgedHosts::kAddress[node]);
      HostControlBlock of_node(controls.node(), 30), of_rail(controls.across(), 30);
      EXPECT_FALSE(of_node.is_linked());
      ControlLinks links(of_rail, controls.across(), kTimeout_s);
      world.communicator().barrier("linked");
      if (rank == 3) testing::ForgedHosts::cut_cable();
      uint64_t word = 0;
      for (int i = 0; i < 4000 && word == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        word = HostControlBlock::load(of_rail.row(node).host_abort);
      }
      const cuda::WaitFailure failure = cuda::unpack(word);
      EXPECT_EQ(failure.kind, cuda::WaitKind::kUnreachable);
      EXPECT_EQ(failure.peer, 1 - node);
      std::ofstream(folder + "/" + std::to_string(rank)) << "noticed";
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);  // connections of the groups would wait for the other host
    });
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome.exit_code, 0);
      EXPECT_EQ(outcome.error_text, "");
    }
  };
  const TemporaryFolder folder;
  const auto tries = run_processes(1, [&](int) { on_both_hosts(testing::ForgedHosts(), folder.path()); }, 100);
  if (tries[0].error_text.find("forged hosts") != std::string::npos) GTEST_SKIP() << tries[0].error_text;
  EXPECT_EQ(tries[0].exit_code, 0) << tries[0].error_text;
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(std::ifstream(folder.path() + "/" + std::to_string(rank)).good());
}

}  // namespace
}  // namespace tangram::comm
