// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Control blocks of ranks on several nodes: what comes through, and what survivors learn when ranks, nodes and cables
// are lost. Ranks are processes that claim to be on different nodes.
#include "comm/device/control_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "comm/device/control_block_agreement.hpp"
#include "comm/device/failure_text.hpp"
#include "comm/device/forged_hosts.hpp"
#include "comm/nodes/listener.hpp"
#include "comm/process_group.hpp"
#include "comm/socket/address.hpp"
#include "support/sample.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {
namespace {

using cuda::WaitFailure;
using cuda::WaitKind;
using testing::ForgedHosts;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run_processes;

constexpr int kSize = 3;
constexpr double kSetup_s = 30;

void claim_node(int rank) {
  Env env = Env::get();
  env.node_id = "node_" + std::to_string(rank);
  Env::set(env);
}

/// Waits until `is_so`; false after 20 s.
template <class IsSo>
bool eventually(const IsSo& is_so) {
  for (int i = 0; i < 4000; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

/// A rank's part in a group over several nodes.
struct Linked {
  Linked(Communicator& control, double timeout_s)
      : control_block(control, kSetup_s),
        links(control_block, control, timeout_s),
        watchdog(control_block, control.rank(), timeout_s, [](const WaitFailure&, double) {}) {}

  HostControlBlock control_block;
  ControlLinks links;
  Watchdog watchdog;
};

/// Ranks that meet at `host`, each on a node of its own; the listener is open before any starts.
std::vector<Outcome> run_nodes(int size, const std::string& host, const std::function<void(int rank)>& enter,
                               const std::function<void(Communicator&)>& rank_main, double limit_s = 60) {
  Listener listener = listen_at_host(host);
  return run_processes(
      size,
      [&](int rank) {
        if (enter) enter(rank);
        claim_node(rank);
        SocketGroupConfig config{rank, size, "tcp:" + listener.address, kSetup_s, std::string(32, 's')};
        if (rank == 0) config.listener = ::dup(listener.fd.get());
        listener.fd = UniqueFd();
        SocketGroup group(config);
        rank_main(group.communicator());
      },
      limit_s);
}

std::vector<Outcome> run_nodes(const std::function<void(Communicator&)>& rank_main, double limit_s = 60) {
  return run_nodes(kSize, "127.0.0.1", nullptr, rank_main, limit_s);
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank << ": " << outcomes[rank].error_text;
    EXPECT_EQ(outcomes[rank].error_text, "") << "rank " << rank;
  }
}

/// Throws the error that the group's check() would throw.
void throw_what_is_known(const HostControlBlock& control_block, int rank, double timeout_s) {
  uint64_t word = HostControlBlock::load(control_block.row(rank).report);
  if (word == 0) word = HostControlBlock::load(control_block.row(rank).host_abort);
  if (word == 0) return;
  const WaitFailure failure = cuda::unpack(word);
  RankNames names;
  for (int peer = 0; peer < control_block.size(); ++peer)
    names.nodes.push_back(std::string(1, static_cast<char>('a' + peer)));
  throw_failure(failure, failure_text(failure, {"forward"}, timeout_s, control_block.row(failure.peer).text, names));
}

/// Until the rank learns of a failure; the error is its outcome. Returns after `limit_s` without one.
void wait_for_failure(const HostControlBlock& control_block, int rank, double timeout_s, double limit_s = 20) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (std::chrono::steady_clock::now() < end) {
    throw_what_is_known(control_block, rank, timeout_s);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(ControlLinks, RowsAndFactsComeToTheOtherNodes) {
  expect_success(run_nodes([](Communicator& control) {
    Linked linked(control, 30);
    HostControlBlock& block = linked.control_block;
    const int rank = control.rank();
    EXPECT_TRUE(block.is_linked());
    cuda::ControlBlockRow& own = block.row(rank);
    CallFingerprint fingerprint;
    fingerprint.set(CallFingerprint::kMask, static_cast<uint64_t>(100 + rank));
    const uint32_t tag = block.show_fingerprint(rank, fingerprint);
    HostControlBlock::store(own.operation, static_cast<uint64_t>(1000 + rank));
    HostControlBlock::store(own.progress, static_cast<uint64_t>(2000 + rank));
    HostControlBlock::store(own.opened, static_cast<uint64_t>(tag));
    HostControlBlock::store(own.stopped, 1);
    for (int peer = 0; peer < kSize; ++peer) {
      const cuda::ControlBlockRow& row = block.row(peer);
      EXPECT_TRUE(eventually([&] { return HostControlBlock::load(row.stopped) == 1; })) << "of rank " << peer;
      EXPECT_EQ(HostControlBlock::load(row.operation), static_cast<uint64_t>(1000 + peer));
      EXPECT_EQ(HostControlBlock::load(row.progress), static_cast<uint64_t>(2000 + peer));
      CallFingerprint expected;
      expected.set(CallFingerprint::kMask, static_cast<uint64_t>(100 + peer));
      EXPECT_EQ(block.fingerprint(peer, static_cast<uint32_t>(HostControlBlock::load(row.opened))), expected);
      EXPECT_EQ(HostControlBlock::load(row.host_abort), 0u);
    }
    control.barrier("read");
  }));
}

// Each rank has a control block of its own, so that words must come to the one that they are for, the first of each.
TEST(ControlLinks, AFailureThatARankReportsToAPeerComesThere) {
  expect_success(run_nodes([](Communicator& control) {
    Linked linked(control, 30);
    HostControlBlock& block = linked.control_block;
    const WaitFailure failure{WaitKind::kReadyFlag, 1, 2, 3, 0, 0};
    if (control.rank() == 1) {
      HostControlBlock::store_first(block.row(0).report, cuda::pack(failure));
      HostControlBlock::store_first(block.row(0).report, 7);  // too late
    }
    if (control.rank() == 0) {
      EXPECT_TRUE(eventually([&] { return HostControlBlock::load(block.row(0).report) != 0; }));
      EXPECT_EQ(cuda::unpack(HostControlBlock::load(block.row(0).report)), failure);
    }
    control.barrier("read");
    EXPECT_EQ(HostControlBlock::load(block.row(2).report), 0u);
  }));
}

CallFingerprint facts_of_mask(uint64_t mask) {
  CallFingerprint fingerprint;
  fingerprint.set(CallFingerprint::kMask, mask);
  return fingerprint;
}

TEST(ControlLinks, RanksOfSeveralNodesAgreeWithoutMeeting) {
  expect_success(run_nodes([](Communicator& control) {
    Linked linked(control, 30);
    ControlBlockAgreement agreement(linked.control_block, control.rank(), 30, {}, [] {});
    for (uint64_t i = 0; i < 40; ++i) agreement.agree(facts_of_mask(i), 7);  // though others may not have begun
    agreement.meet();
    for (uint64_t i = 0; i < 300; ++i) agreement.agree(facts_of_mask(i), i);  // more than a control block holds
    agreement.meet();
    for (int peer = 0; peer < kSize; ++peer) EXPECT_EQ(linked.control_block.num_statements(peer), 340u);
    EXPECT_NO_THROW(agreement.look());
    control.barrier("agreed");
  }));
}

TEST(ControlLinks, ARankOfAnotherNodeThatMakesSomethingElseIsNamed) {
  const auto outcomes = run_nodes([](Communicator& control) {
    Linked linked(control, 30);
    ControlBlockAgreement agreement(linked.control_block, control.rank(), 30, {}, [] {});
    agreement.agree(facts_of_mask(1), 7);
    agreement.meet();
    try {
      agreement.agree(facts_of_mask(control.rank() == 2 ? 3 : 2), 7);
      agreement.meet();
    } catch (const InvalidArgument&) {
      control.barrier("seen");
      throw;
    }
    control.barrier("seen");
  });
  // Who differs knows from either of the others, and each of these from it.
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error_type, "InvalidArgument");
    EXPECT_THAT(outcome.error_text, HasSubstr("must be equal on every rank"));
  }
}

TEST(ControlLinks, ARankThatGivesUpIsNamedWithItsNodeAndReason) {
  const auto outcomes = run_nodes([](Communicator& control) {
    Linked linked(control, 30);
    control.barrier("linked");
    if (control.rank() == 2) {
      linked.control_block.give_up(2, "out of memory in stage 3");
      return;  // at once: it must be told before the connections end
    }
    wait_for_failure(linked.control_block, control.rank(), 30);
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(outcomes[rank].error_type, "CommError");
    EXPECT_EQ(outcomes[rank].error_text, "rank 2 (node c) gave up: out of memory in stage 3");
  }
}

TEST(ControlLinks, ARankThatLeavesIsNoFailure) {
  expect_success(run_nodes([](Communicator& control) {
    {
      Linked linked(control, 1);
      control.barrier("linked");
      if (control.rank() != 1) {
        EXPECT_TRUE(eventually([&] { return HostControlBlock::load(linked.control_block.row(1).has_left) != 0; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        throw_what_is_known(linked.control_block, control.rank(), 1);
      }
    }
    control.barrier("all left");
  }));
}

// The connection has ended by the time that the rank runs again, but its peer had said before that it leaves.
TEST(ControlLinks, ARankThatLeavesWhileAPeerIsStoppedIsNoFailure) {
  Listener listener = listen_at_host("127.0.0.1");
  const auto rank_main = [&](int rank, const std::function<void()>& when_linked) {
    claim_node(rank);
    SocketGroupConfig config{rank, 2, "tcp:" + listener.address, kSetup_s, std::string(32, 's')};
    if (rank == 0) config.listener = ::dup(listener.fd.get());
    SocketGroup group(config);
    Linked linked(group.communicator(), 30);
    group.communicator().barrier("linked");
    when_linked();
    if (rank == 1) return;
    const HostControlBlock& block = linked.control_block;
    EXPECT_TRUE(eventually([&] { return HostControlBlock::load(block.row(1).has_left) != 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(HostControlBlock::load(block.row(0).host_abort), 0u);
  };
  const auto outcomes = run_processes(2, [&](int rank) {
    if (rank == 1) {
      rank_main(1, [] { std::this_thread::sleep_for(std::chrono::milliseconds(500)); });
      return;
    }
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t stopped = ::fork();  // not a rank's process itself: run_processes takes a stop for the end
    if (stopped == 0) {
      rank_main(0, [&] { static_cast<void>(!::write(ends[1], "x", 1)); });
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    char byte = 0;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ::kill(stopped, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(500 + 1500) +
                                std::chrono::duration<double>(ControlLinks::kLeave_s));
    ::kill(stopped, SIGCONT);
    int status = 0;
    ::waitpid(stopped, &status, 0);
    EXPECT_EQ(status, 0);
  });
  expect_success(outcomes);
}

/// Rank 1 of three nodes ends as `end` says; what the others learn.
std::vector<Outcome> lose_rank(const std::function<void()>& end, double timeout_s) {
  return run_nodes([&](Communicator& control) {
    Linked linked(control, timeout_s);
    control.barrier("linked");
    if (control.rank() == 1) end();
    wait_for_failure(linked.control_block, control.rank(), timeout_s);
  });
}

TEST(ControlLinks, AKilledRankIsNamedAtOnce) {
  const auto outcomes = lose_rank([] { raise(SIGKILL); }, 30);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(outcomes[rank].error_type, "CommError");
    EXPECT_THAT(outcomes[rank].error_text, HasSubstr("rank 1 (node b) has ended (noticed by rank"));
  }
}

TEST(ControlLinks, AStoppedRankIsATimeoutThatNamesIt) {
  const auto outcomes = lose_rank([] { raise(SIGSTOP); }, 0.5);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(outcomes[rank].error_type, "Timeout");
    EXPECT_THAT(outcomes[rank].error_text, HasSubstr("rank 1 (node b) does not run (noticed by rank"));
  }
}

TEST(ControlLinks, ARankThatDoesNotComeToTheLinksIsNamed) {
  const auto outcomes = run_nodes([&](Communicator& control) {
    HostControlBlock control_block(control, kSetup_s);
    if (control.rank() == 2) {
      // Up to where ranks connect: it is told where, and stays away.
      meeting_by_tcp(control, {0, 2, kSize}, host_address(control), 2);
      std::this_thread::sleep_for(std::chrono::seconds(4));
      return;
    }
    ControlLinks(control_block, control, 2);
  });
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(outcomes[rank].error_type, "Timeout");
  EXPECT_THAT(outcomes[0].error_text, HasSubstr("rank 2 did not start within 2 s"));
}

// A process that does not know the secret, or says nothing, must neither join nor hold a rank up.
TEST(ControlLinks, StrangersAreDroppedWithoutAWait) {
  Listener listener = listen_at_host("127.0.0.1");
  const size_t colon = listener.address.rfind(':');
  const Address address = tcp_address(listener.address.substr(0, colon), listener.address.substr(colon + 1));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 3; ++i) {
    UniqueFd& fd = strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), address.get(), address.length), 0);
  }
  const std::string noise(80, 'x');
  ASSERT_EQ(::send(strangers[1].get(), noise.data(), noise.size(), MSG_NOSIGNAL), 80);
  expect_success(run_processes(2, [&](int rank) {
    SocketGroupConfig config{rank, 2, "tcp:" + listener.address, kSetup_s, std::string(32, 's')};
    if (rank == 0) config.listener = ::dup(listener.fd.get());
    const auto begin = std::chrono::steady_clock::now();
    SocketGroup group(config);
    group.communicator().barrier("met");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  }));
}

TEST(ControlLinks, ACableThatIsCutNamesEachSideToTheOther) {
  constexpr double kTimeout_s = 2;
  // In a process of its own, because it changes its name spaces.
  const auto tries = run_processes(1, [&](int) {
    const ForgedHosts hosts;
    const auto outcomes = run_nodes(
        2, ForgedHosts::kAddress[0], [&](int rank) { hosts.enter(rank); },
        [&](Communicator& control) {
          Linked linked(control, kTimeout_s);
          EXPECT_EQ(host_address(control), ForgedHosts::kAddress[control.rank()]);
          control.barrier("linked");
          if (control.rank() == 1) ForgedHosts::cut_cable();
          wait_for_failure(linked.control_block, control.rank(), kTimeout_s);
        });
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(outcomes[rank].error_type, "CommError") << outcomes[rank].error_text;
      EXPECT_THAT(outcomes[rank].error_text,
                  HasSubstr(rank == 0 ? "rank 1 (node b) cannot be reached" : "rank 0 (node a) cannot be reached"));
      EXPECT_LT(outcomes[rank].seconds, 20);
    }
  });
  if (tries[0].error_text.find("forged hosts") != std::string::npos) GTEST_SKIP() << tries[0].error_text;
  EXPECT_EQ(tries[0].error_text, "");
  EXPECT_EQ(tries[0].exit_code, 0);
}

// Random ranks are killed or stopped at random times: no rank hangs, and every survivor names the one that was lost.
TEST(ControlLinks, RandomLossesAreNamedByAllSurvivors) {
  const int num_rounds = support::rounds(100, 4);
  std::mt19937 random(7);
  for (int round = 0; round < num_rounds; ++round) {
    const int lost = static_cast<int>(random() % kSize);
    const int signal = random() % 2 == 0 ? SIGKILL : SIGSTOP;
    const auto pause = std::chrono::milliseconds(random() % 50);
    SCOPED_TRACE(::testing::Message() << "round " << round << ", rank " << lost << ", signal " << signal);
    const auto outcomes = run_nodes([&](Communicator& control) {
      Linked linked(control, 0.5);
      control.barrier("linked");
      if (control.rank() == lost) {
        std::this_thread::sleep_for(pause);
        raise(signal);
      }
      wait_for_failure(linked.control_block, control.rank(), 0.5);
    });
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == lost) continue;
      EXPECT_THAT(outcomes[static_cast<size_t>(rank)].error_text, HasSubstr("rank " + std::to_string(lost) + " (node"));
    }
  }
}

}  // namespace
}  // namespace tangram::comm
