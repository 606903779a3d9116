// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/host_control_block.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/process_group.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {
namespace {

using cuda::WaitFailure;
using cuda::WaitKind;
using tangram::testing::run_processes;
using tangram::testing::TemporaryFolder;

void expect_shared(Communicator& comm) {
  HostControlBlock control_block(comm, 30);
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == (comm.rank() + 1) % comm.size()) {
      HostControlBlock::store_first(control_block.row(peer).report, static_cast<uint64_t>(100 + comm.rank()));
      HostControlBlock::store_first(control_block.row(peer).report, 7);  // too late
    }
  }
  comm.barrier("written");
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  EXPECT_EQ(HostControlBlock::load(control_block.row(comm.rank()).report), static_cast<uint64_t>(100 + previous));
  int num_prepared = 0;
  control_block.prepare_once([&](void*, size_t bytes) { num_prepared += bytes > 0; }, [](void*) {});
  control_block.prepare_once([&](void*, size_t) { ++num_prepared; }, [](void*) {});
  EXPECT_LE(num_prepared, 1);
  comm.barrier("read");
}

TEST(HostControlBlock, RowsAreSharedByThreads) { run_local_ranks(3, expect_shared); }

TEST(HostControlBlock, RowsAreSharedByProcesses) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(3, [&](int rank) {
    SocketGroup group({rank, 3, "unix:" + folder.path(), 30});
    expect_shared(group.communicator());
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.error_text;
}

// A shorter second reason left the tail of the first behind it, under the eyes of peers that read.
TEST(HostControlBlock, TheFirstReasonToGiveUpStands) {
  run_local_ranks(2, [](Communicator& comm) {
    HostControlBlock control_block(comm, 30);
    if (comm.rank() == 1) {
      control_block.give_up(1, "out of memory in stage 3");
      control_block.give_up(1, "closed");
    }
    comm.barrier("given up");
    EXPECT_STREQ(control_block.row(1).text, "out of memory in stage 3");
    EXPECT_STREQ(control_block.row(0).text, "");
    EXPECT_EQ(cuda::unpack(HostControlBlock::load(control_block.row(comm.rank()).host_abort)).peer, 1);
    comm.barrier("read");
    if (comm.rank() == 0) {
      control_block.give_up(0, std::string(10'000, 'x'));
      EXPECT_EQ(std::strlen(control_block.row(0).text), sizeof(control_block.row(0).text) - 1);
      EXPECT_EQ(cuda::unpack(HostControlBlock::load(control_block.row(1).host_abort)).peer, 1)
          << "who gave up first is the cause";
    }
  });
}

CallFingerprint fingerprint_with_softcap(float softcap) {
  CallFingerprint fingerprint;
  fingerprint.set(CallFingerprint::kMask, uint64_t{17});
  fingerprint.set(CallFingerprint::kSoftcap, softcap);
  return fingerprint;
}

TEST(HostControlBlock, CallsAreFoundByTheirTagsOnOtherRanks) {
  run_local_ranks(2, [](Communicator& comm) {
    HostControlBlock control_block(comm, 30);
    EXPECT_EQ(control_block.show_fingerprint(comm.rank(), {}), 0u) << "facts that say nothing";
    const uint32_t plain = control_block.show_fingerprint(comm.rank(), fingerprint_with_softcap(0));
    const uint32_t other = control_block.show_fingerprint(comm.rank(), fingerprint_with_softcap(5));
    EXPECT_NE(plain, other);
    EXPECT_LT(std::max(plain, other), 1u << 19);
    EXPECT_EQ(control_block.show_fingerprint(comm.rank(), fingerprint_with_softcap(0)), plain);
    comm.barrier("shown");
    EXPECT_EQ(control_block.fingerprint(1 - comm.rank(), plain), fingerprint_with_softcap(0))
        << "a tag follows from the facts alone";
    EXPECT_EQ(control_block.fingerprint(1 - comm.rank(), other), fingerprint_with_softcap(5));
    EXPECT_EQ(control_block.fingerprint(1 - comm.rank(), 1), std::nullopt);
    comm.barrier("read");
    for (int i = 1; i <= 15; ++i)
      control_block.show_fingerprint(comm.rank(), fingerprint_with_softcap(100.0f + static_cast<float>(i)));
    EXPECT_EQ(control_block.fingerprint(comm.rank(), plain), std::nullopt) << "the oldest makes room";
    EXPECT_EQ(control_block.fingerprint(comm.rank(), other), fingerprint_with_softcap(5));
  });
}

// Under the thread sanitizer: plain copies of rows that are written over while others read them were a race.
TEST(HostControlBlock, StatementsAndFactsAreReadWholeWhileTheirRankComesRound) {
  constexpr uint64_t kRounds = 20 * HostControlBlock::kStatements;
  std::atomic<uint64_t> num_seen = 0;  // relaxed, so that it orders nothing
  run_local_ranks(2, [&](Communicator& comm) {
    HostControlBlock control_block(comm, 30);
    if (comm.rank() == 0) {
      for (uint64_t i = 0; i < kRounds; ++i) {
        while (num_seen.load(std::memory_order_relaxed) + 16 < i) std::this_thread::yield();
        AgreementRecord statement;
        statement.fingerprint.words.fill(i);
        statement.options = i;
        std::memset(statement.refusal, static_cast<int>('a' + i % 26), sizeof(statement.refusal) - 1);
        control_block.make_agreement_record(0, statement);
        control_block.show_fingerprint(0, fingerprint_with_softcap(static_cast<float>(i % 40)));
      }
    } else {
      const uint32_t tag = control_block.show_fingerprint(1, fingerprint_with_softcap(3));
      uint64_t num_read = 0;
      const auto read = [&](uint64_t number) {
        const std::optional<AgreementRecord> statement = control_block.statement(0, number);
        if (!statement) return;
        ++num_read;
        EXPECT_EQ(statement->options, number);
        for (const uint64_t word : statement->fingerprint.words) EXPECT_EQ(word, number);
        const std::string text(sizeof(statement->refusal) - 1, static_cast<char>('a' + number % 26));
        EXPECT_EQ(statement->refusal, text);
      };
      for (uint64_t num_made = 0; num_made < kRounds;) {
        num_made = control_block.num_statements(0);
        num_seen.store(num_made, std::memory_order_relaxed);
        if (num_made == 0) continue;
        read(num_made - 1);
        read(num_made > HostControlBlock::kStatements ? num_made - HostControlBlock::kStatements
                                                      : 0);  // is written over next
        EXPECT_EQ(control_block.fingerprint(0, tag).value_or(fingerprint_with_softcap(3)), fingerprint_with_softcap(3));
      }
      EXPECT_GT(num_read, 0u);
    }
    comm.barrier("read");
  });
}

/// Rank 1 of three processes ends as `end` says; the others must notice `kind` in time, or nothing.
void expect_notice(const std::function<void()>& end, WaitKind kind, double timeout_s, double limit_s) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(
      3,
      [&](int rank) {
        SocketGroup group({rank, 3, "unix:" + folder.path(), 30});
        HostControlBlock control_block(group.communicator(), 30);
        auto watchdog = std::make_unique<Watchdog>(control_block, rank, timeout_s, [](const WaitFailure&, double) {});
        group.communicator().barrier("watching");
        if (rank == 1) {
          if (!end) watchdog.reset();
          if (end) end();
          return;
        }
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
        uint64_t word = 0;
        while (word == 0 && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          word = HostControlBlock::load(control_block.row(rank).host_abort);
        }
        const WaitFailure failure = cuda::unpack(word);
        EXPECT_EQ(failure.kind, kind);
        EXPECT_EQ(failure.peer, kind == WaitKind::kNone ? 0 : 1);
      },
      60);
  for (const size_t rank : {size_t{0}, size_t{2}}) EXPECT_EQ(outcomes[rank].exit_code, 0);
}

TEST(Watchdog, NoticesAKilledProcessAtOnce) {
  expect_notice([] { raise(SIGKILL); }, WaitKind::kEnded, 30, 20);
}

TEST(Watchdog, NoticesAStoppedProcessAfterTheTimeout) {
  expect_notice([] { raise(SIGSTOP); }, WaitKind::kSilent, 0.2, 20);
}

// It was not known for which rank a GPU waited before its time was over.
TEST(Watchdog, TellsForHowLongAKernelHasWaited) {
  run_local_ranks(2, [](Communicator& comm) {
    HostControlBlock control_block(comm, 30);
    std::mutex mutex;
    std::vector<std::pair<WaitFailure, double>> notes;
    const WaitFailure wait{WaitKind::kReadyFlag, comm.rank(), 1 - comm.rank(), 3, 5, 0};
    {
      Watchdog watchdog(control_block, comm.rank(), 20, [&](const WaitFailure& failure, double waited_s) {
        const std::lock_guard lock(mutex);
        notes.emplace_back(failure, waited_s);
      });
      const auto has_told = [&] {
        const std::lock_guard lock(mutex);
        return notes.size() >= 3 && notes.back().second > 10.1;
      };
      for (int i = 0; i < 2000 && !has_told(); ++i) {  // as a kernel does from half of its time on
        HostControlBlock::store(control_block.row(comm.rank()).waiting, cuda::pack(wait));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    ASSERT_GE(notes.size(), 3u);
    for (const auto& [failure, waited_s] : notes) EXPECT_EQ(failure, wait);
    EXPECT_NEAR(notes.front().second, 10, 0.01) << "half of its time";
    EXPECT_GT(notes.back().second, 10.1);
    EXPECT_LT(notes.back().second, 15);
  });
}

TEST(Watchdog, LetsAProcessLeave) { expect_notice(nullptr, WaitKind::kNone, 30, 0.5); }

}  // namespace
}  // namespace tangram::comm
