// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What children of ranks do with the group of their parent: NOTE [after a fork].
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>

#include "comm/communicator_suite.hpp"
#include "comm/process_group.hpp"
#include "support/in_child.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"
#include "tangram/socket_group.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::run_processes;
using testing::TemporaryFolder;

constexpr double kLongTimeout_s = 30;  // never reached

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return {};
}

/// Calls of all kinds, and then the end of the group; the peers must notice none of it.
template <class Group>
bool child_is_refused(std::unique_ptr<Group>& group, Communicator& communicator) {
  float value = 1;
  bool refused = true;
  for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
           [&] { communicator.barrier("of the child"); },
           [&] { communicator.all_reduce({&value, 1}, ReduceOp::kSum, "of the child"); },
           [&] { communicator.refuse("the child says so"); },
           [&] { communicator.counters(); },
       }) {
    refused =
        refused && error_of(call).find("a child of a fork must not use a group of its parent") != std::string::npos;
  }
  communicator.abort("the child says so");
  group.reset();
  return refused;
}

TEST(AfterFork, AChildOfALocalGroupGetsAnErrorInsteadOfAHang) {
  auto group = std::make_unique<LocalGroup>(2, kLongTimeout_s);
  EXPECT_TRUE(test::passes_in_child([&] { return child_is_refused(group, group->communicator(0)); }));
}

TEST(AfterFork, AChildOfASocketGroupGetsAnErrorAndItsParentGoesOn) {
  const TemporaryFolder folder;
  const std::vector<Outcome> outcomes = run_processes(2, [&](int rank) {
    auto group = std::make_unique<SocketGroup>(SocketGroupConfig{rank, 2, "unix:" + folder.path(), kLongTimeout_s, {}});
    group->communicator().barrier("before");
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(test::passes_in_child([&] { return child_is_refused(group, group->communicator()); }));
      group->communicator().barrier("between");
    }
    for (const testing::CommunicatorCase& test : testing::communicator_cases()) test.run(group->communicator());
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_text, "");
  }
}

// A copy of the connection in the child kept it open: peers waited for the timeout.
TEST(AfterFork, ADeadRankIsSeenThoughItsChildLives) {
  const TemporaryFolder folder;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::vector<Outcome> outcomes = run_processes(2, [&](int rank) {
    SocketGroup group({rank, 2, "unix:" + folder.path(), kLongTimeout_s, {}});
    group.communicator().barrier("before");
    if (rank == 1) {
      if (::fork() == 0) {
        ::alarm(60);
        char byte;
        ::_exit(::read(ends[0], &byte, 1) == 1 ? 0 : 1);  // until rank 0 has its error
      }
      ::raise(SIGKILL);
    }
    try {
      group.communicator().barrier("after");
    } catch (const Error&) {
      EXPECT_EQ(::write(ends[1], "", 1), 1);
      throw;
    }
  });
  EXPECT_EQ(outcomes[0].error_type, "CommError");
  EXPECT_THAT(outcomes[0].error_text, HasSubstr("rank 1 has ended without taking part"));
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace tangram
