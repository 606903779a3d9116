// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/heap/process_identity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "comm/device/host_control_block.hpp"
#include "comm/process_group.hpp"
#include "tangram/error.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {
namespace {

ProcessIdentity at(const char* boot, uint64_t numbering, int64_t number) {
  ProcessIdentity identity;
  std::strcpy(identity.host, boot);
  std::strcpy(identity.boot, boot);
  identity.numbering = numbering;
  identity.number = number;
  return identity;
}

TEST(ProcessIdentity, NumbersThatRepeatInContainersAreOtherProcesses) {
  const ProcessIdentity threads[] = {at("a", 1, 47), at("a", 1, 47)};
  EXPECT_TRUE(are_one_process(threads));
  const ProcessIdentity processes[] = {at("a", 1, 47), at("a", 1, 48)};
  EXPECT_FALSE(are_one_process(processes));
  const ProcessIdentity containers[] = {at("a", 1, 47), at("a", 2, 47)};
  EXPECT_FALSE(are_one_process(containers));
}

TEST(ProcessIdentity, OtherHostIsNamed) {
  const ProcessIdentity ranks[] = {at("a", 1, 47), at("a", 1, 48), at("b", 1, 47)};
  try {
    are_one_process(ranks);
    ADD_FAILURE() << "took two hosts for one";
  } catch (const NotAvailable& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 0 is on a, rank 2 on b"));
  }
  EXPECT_TRUE(ProcessIdentity::own().is_same_process(ProcessIdentity::own()));
}

/// Runs `rank_main` as process 1 of a container of its own; false where that is not permitted.
bool run_as_process_one(const std::function<void()>& rank_main) {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return false;
  const pid_t process = ::fork();
  if (process == 0) {
    int code = ::getpid() == 1 ? 0 : 3;
    try {
      rank_main();
    } catch (const std::exception&) {
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  if (status != 0) throw InternalError("a rank with number 1 failed");
  return true;
}

TEST(ProcessIdentity, RanksWithEqualNumbersDoNotReadEachOthersAddresses) {
  const testing::TemporaryFolder folder;
  const auto outcomes = testing::run_processes(2, [&](int rank) {
    run_as_process_one([&] {
      SocketGroup group({rank, 2, "unix:" + folder.path(), 30});
      const HostControlBlock control_block(group.communicator(), 30);
      HostControlBlock::store_first(control_block.row(1 - rank).report, static_cast<uint64_t>(100 + rank));
      group.communicator().barrier("written");
      if (HostControlBlock::load(control_block.row(rank).report) != static_cast<uint64_t>(101 - rank)) {
        throw InternalError("the control block is not shared");
      }
      group.communicator().barrier("read");
    });
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.error_text, "") << outcome.exit_code;
}

}  // namespace
}  // namespace tangram::comm
