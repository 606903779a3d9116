// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How communicators of NCCL end, and whom a rank names that waits in them. Over a library that is none.
#include "comm/nccl/nccl_abort.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/nccl/blame.hpp"
#include "tangram/local_group.hpp"

namespace tangram::comm {
namespace {

std::atomic<int> num_aborts = 0;
std::atomic<bool> is_stuck = false;

int fake_abort(NcclApi::Comm) {
  ++num_aborts;
  while (is_stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return NcclApi::kSuccess;
}

TEST(NcclAbort, OneThatIsStuckIsLeftBehind) {
  NcclApi api;
  api.comm_abort = fake_abort;
  EXPECT_TRUE(abort_or_leave(api, nullptr, 30));
  EXPECT_EQ(num_aborts, 1);
  is_stuck = true;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(abort_or_leave(api, nullptr, 0.1));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  is_stuck = false;
}

TEST(Blame, NamesWhoHasBegunFewestThenWhoWasHeardOfLast) {
  run_local_ranks(4, [](Communicator& comm) {
    HostControlBlock block(comm, 30);
    if (comm.rank() == 0) {
      const uint64_t progress[] = {5, 5, 5, 6}, heard[] = {400, 300, 200, 100};
      for (int rank = 0; rank < 4; ++rank) {
        HostControlBlock::store(block.row(rank).progress, progress[rank]);
        HostControlBlock::store(block.row(rank).heartbeat_ns, heard[rank]);
      }
      EXPECT_EQ(slowest_peer(block, 0), 3) << "no peer is behind, so the one that was silent for longest";
      HostControlBlock::store(block.row(1).progress, 4);
      EXPECT_EQ(slowest_peer(block, 0), 1);
      EXPECT_EQ(slowest_peer(block, 1), 3) << "itself it does not name";
      HostControlBlock::store(block.row(2).progress, 3);
      EXPECT_EQ(slowest_peer(block, 0), 2);
    }
    comm.barrier("looked");
  });
}

}  // namespace
}  // namespace tangram::comm
