// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention over processes that are connected by sockets.
#include <gtest/gtest.h>

#include "comm/process_group.hpp"
#include "runtime/rank_suite.hpp"
#include "tangram/socket_group.hpp"

namespace tangram {
namespace {

constexpr double kTimeout_s = 60;  // never reached when errors move as they must

class DistAttentionOverSockets : public ::testing::TestWithParam<int> {
 protected:
  static void run(void (*check)(Communicator&)) {
    const testing::TemporaryFolder folder;
    const std::vector<testing::Outcome> outcomes = testing::run_processes(
        GetParam(),
        [&](int rank) {
          SocketGroup group({rank, GetParam(), "unix:" + folder.path(), kTimeout_s});
          check(group.communicator());
        },
        2 * kTimeout_s);
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank;
      EXPECT_EQ(outcomes[rank].error_text, "") << "rank " << rank;
    }
  }
};

TEST_P(DistAttentionOverSockets, StrategiesEqualSingleRank) { run(testing::check_strategies); }

TEST_P(DistAttentionOverSockets, MovedQueriesEqualSingleRank) { run(testing::check_moved_queries); }

INSTANTIATE_TEST_SUITE_P(Ranks, DistAttentionOverSockets, ::testing::Values(2, 3, 4, 8),
                         [](const auto& param_info) { return "On" + std::to_string(param_info.param); });

}  // namespace
}  // namespace tangram
