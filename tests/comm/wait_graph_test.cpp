// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/wait_graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tangram::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kTimeout_s = 16;

/// What `rank` of `size` would say of itself.
std::vector<char> waiting_for(int rank, int size, const std::vector<int>& peers) {
  return WaitGraph({rank, size}, kTimeout_s).encode(peers);
}

TEST(WaitGraph, BlamesTheRankAtTheEndOfTheChain) {
  // 0 waits for 1 and 2, 1 for 2, 2 for 3, which says nothing.
  WaitGraph graph({0, 12}, kTimeout_s);
  graph.hear(1, waiting_for(1, 12, {2, 0}), 100);
  graph.hear(2, waiting_for(2, 12, {11}), 100);
  EXPECT_THAT(graph.silent(std::vector{1, 2}, 101), ElementsAre(11));
  // One of the chain that is stopped as well.
  EXPECT_THAT(graph.silent(std::vector{1, 5}, 101), ElementsAre(5, 11));
}

TEST(WaitGraph, OldMessagesExcuseNoRank) {
  WaitGraph graph({0, 3}, kTimeout_s);
  graph.hear(1, waiting_for(1, 3, {2}), 100);
  EXPECT_THAT(graph.silent(std::vector{1}, 107), ElementsAre(2));
  EXPECT_THAT(graph.silent(std::vector{1}, 109), ElementsAre(1));
  // Nor does a rank that waits for no rank, or an invalid message.
  graph.hear(2, waiting_for(2, 3, {}), 109);
  graph.hear(1, std::vector<char>(7, '\xff'), 109);
  EXPECT_THAT(graph.silent(std::vector{1, 2}, 109), ElementsAre(1, 2));
}

TEST(WaitGraph, BlamesNoRankWhereAllWaitForEachOther) {
  WaitGraph graph({0, 3}, kTimeout_s);
  graph.hear(1, waiting_for(1, 3, {2}), 100);
  graph.hear(2, waiting_for(2, 3, {0, 1}), 100);
  EXPECT_THAT(graph.silent(std::vector{1}, 101), IsEmpty());
}

TEST(WaitGraph, SaysSoNowAndThen) {
  WaitGraph graph({0, 3}, kTimeout_s);
  EXPECT_FALSE(graph.is_due(100, 100.5));
  EXPECT_TRUE(graph.is_due(100, 101));
  EXPECT_FALSE(graph.is_due(100, 101.5));
  EXPECT_TRUE(graph.is_due(100, 102));
  EXPECT_FALSE(graph.is_due(110, 110.5));  // another wait
}

}  // namespace
}  // namespace tangram::comm
