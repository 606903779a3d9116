// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/forked_ranks.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "tangram/error.hpp"

namespace tangram::comm {
namespace {

constexpr int kErrorCode = 77;
int on_error(const std::exception&) { return kErrorCode; }

TEST(ForkedRanks, AreOneGroupAndReturnZeroWhenAllDo) {
  const pid_t parent = getpid();
  const int code = run_forked_ranks(
      3,
      [&](Communicator& communicator) {
        float sum = static_cast<float>(communicator.rank() + 1);
        communicator.all_reduce({&sum, 1}, ReduceOp::kSum, "sum");
        return getpid() != parent && communicator.size() == 3 && sum == 6 ? 0 : 1;
      },
      on_error, 20);
  EXPECT_EQ(code, 0);
}

TEST(ForkedRanks, TheFirstFailureIsReturned) {
  const int code = run_forked_ranks(
      3,
      [&](Communicator& communicator) {
        if (communicator.rank() == 1) return 5;
        communicator.barrier("with one that has gone");  // throws CommError
        return 0;
      },
      on_error, 20);
  EXPECT_EQ(code, 5);
}

TEST(ForkedRanks, WhatARankThrowsGoesToTheHandler) {
  const int code = run_forked_ranks(2, [](Communicator&) -> int { throw InvalidArgument("no"); }, on_error, 20);
  EXPECT_EQ(code, kErrorCode);
}

TEST(ForkedRanks, AFailureIsNoSuccessWhereChildrenAreNotWaitedFor) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);  // inherited from the parent process
  const int code = run_forked_ranks(2, [](Communicator& communicator) { return communicator.rank(); }, on_error, 20);
  EXPECT_EQ(std::signal(SIGCHLD, before), SIG_IGN);
  EXPECT_EQ(code, 1);
}

TEST(ForkedRanks, AKilledRankDoesNotLeaveTheOthersBehind) {
  const auto begin = std::chrono::steady_clock::now();
  const int code = run_forked_ranks(
      2,
      [&](Communicator& communicator) {
        if (communicator.rank() == 0) raise(SIGKILL);
        for (;;) pause();  // never ends by itself
        return 0;
      },
      on_error, 0.5);
  EXPECT_EQ(code, 128 + SIGKILL);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tangram::comm
