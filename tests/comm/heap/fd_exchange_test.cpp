// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/heap/fd_exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/all_gather.hpp"
#include "comm/process_group.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {
namespace {

using tangram::testing::run_processes;
using tangram::testing::TemporaryFolder;

/// Anonymous memory that holds `value`.
UniqueFd memory_with(int value) {
  UniqueFd fd(::memfd_create("tangram_test", 0));
  EXPECT_EQ(::pwrite(fd.get(), &value, sizeof(value), 0), static_cast<ssize_t>(sizeof(value)));
  return fd;
}

int value_in(const UniqueFd& fd) {
  int value = -1;
  EXPECT_EQ(::pread(fd.get(), &value, sizeof(value), 0), static_cast<ssize_t>(sizeof(value)));
  return value;
}

TEST(FdExchange, EveryProcessGetsTheOthersDescriptorsRoundAfterRound) {
  constexpr int kSize = 3;
  const TemporaryFolder folder;
  const auto outcomes = run_processes(kSize, [&](int rank) {
    SocketGroup group({rank, kSize, "unix:" + folder.path(), 30});
    FdExchange exchange(group.communicator(), 30);
    for (int round = 0; round < 5; ++round) {
      const UniqueFd own = memory_with(100 * round + rank);
      const std::vector<UniqueFd> received = exchange.exchange(own.get());
      for (int peer = 0; peer < kSize; ++peer) {
        const UniqueFd& fd = received[static_cast<size_t>(peer)];
        ASSERT_EQ(static_cast<bool>(fd), peer != rank);
        if (fd) {
          EXPECT_EQ(value_in(fd), 100 * round + peer);
        }
      }
      group.communicator().barrier("round");
    }
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.error_text;
}

TEST(FdExchange, RankThatDoesNotComeIsNamedAtTheDeadline) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(2, [&](int rank) {
    SocketGroup group({rank, 2, "unix:" + folder.path(), 30});
    FdExchange exchange(group.communicator(), 0.3);
    if (rank == 0) exchange.exchange(memory_with(1).get());
  });
  EXPECT_EQ(outcomes[0].error_type, "Timeout");
  EXPECT_THAT(outcomes[0].error_text, ::testing::HasSubstr("no descriptor came from rank 1"));
}

TEST(AllGather, GivesTheValuesOfAllRanksByRank) {
  struct Odd {
    char bytes[7];
  };
  run_local_ranks(3, [](Communicator& comm) {
    Odd own{};
    own.bytes[6] = static_cast<char>(40 + comm.rank());
    const std::vector<Odd> all = all_gather(comm, own, "odd");
    const std::vector<int> pairs = all_gather(comm, std::vector<int>{comm.rank(), -comm.rank()}, "pairs");
    for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(all[rank].bytes[6], 40 + static_cast<int>(rank));
    EXPECT_THAT(pairs, ::testing::ElementsAre(0, 0, 1, -1, 2, -2));
  });
}

}  // namespace
}  // namespace tangram::comm
