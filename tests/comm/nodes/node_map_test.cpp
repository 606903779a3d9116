// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tangram/error.hpp"

namespace tangram::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ProcessIdentity on(const char* host, const char* node = "") {
  ProcessIdentity identity;
  std::strcpy(identity.host, host);
  std::strcpy(identity.boot, host);
  std::strcpy(identity.node, node);
  return identity;
}

TEST(NodeMap, RanksOfAHostShareANode) {
  const ProcessIdentity ranks[] = {on("x"), on("x"), on("w"), on("w")};
  const NodeMap map(ranks);
  EXPECT_EQ(map.num_nodes(), 2);
  EXPECT_EQ(map.ranks_per_node(), 2);
  EXPECT_THAT(map.names_of_ranks(), ElementsAre("x", "x", "w", "w"));
}

TEST(NodeMap, WhatTheEnvironmentSaysWinsOverHosts) {
  const ProcessIdentity forged[] = {on("x", "a"), on("x", "a"), on("x", "b"), on("x", "b"), on("x", "c"), on("x", "c")};
  EXPECT_EQ(NodeMap(forged).num_nodes(), 3);
  EXPECT_EQ(NodeMap(forged).name(2), "c");
  const ProcessIdentity joined[] = {on("x", "a"), on("y", "a")};  // a node whose processes have different host names
  EXPECT_EQ(NodeMap(joined).num_nodes(), 1);
  const ProcessIdentity half[] = {on("x", "a"), on("x")};
  EXPECT_EQ(NodeMap(half).num_nodes(), 2);
}

TEST(NodeMap, UnequalNodesHaveTheirGreatestCommonDivisor) {
  const ProcessIdentity six_and_four[] = {on("x"), on("x"), on("x"), on("x"), on("x"),
                                          on("x"), on("y"), on("y"), on("y"), on("y")};
  EXPECT_EQ(NodeMap(six_and_four).ranks_per_node(), 2);
  const ProcessIdentity two_and_one[] = {on("x"), on("x"), on("y")};
  EXPECT_EQ(NodeMap(two_and_one).ranks_per_node(), 1);
  const ProcessIdentity one[] = {on("x"), on("x"), on("x")};
  EXPECT_EQ(NodeMap(one).ranks_per_node(), 3);
}

TEST(NodeMap, RanksThatAlternateBetweenNodesAreRefused) {
  const ProcessIdentity alternating[] = {on("x"), on("y"), on("x"), on("y")};
  try {
    static_cast<void>(NodeMap(alternating).ranks_per_node());
    ADD_FAILURE() << "took ranks that alternate";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("got rank 2 on x again, behind ranks of y"));
    EXPECT_THAT(error.what(), HasSubstr("--map-by slot"));
  }
}

}  // namespace
}  // namespace tangram::comm
