// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/socket_group.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "comm/communicator_suite.hpp"
#include "comm/exchange_tables.hpp"
#include "comm/process_group.hpp"
#include "tangram/error.hpp"
#include "tangram/log.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::run_processes;
using testing::TemporaryFolder;

constexpr double kLongTimeout_s = 30;  // never reached when errors move as they must
constexpr double kShortTimeout_s = 2;  // and that is enough for processes to start on a busy machine
constexpr int kVictim = 1;
constexpr const char* kSecret = "of all jobs of this test";  // which TCP needs

std::string unix_address(const TemporaryFolder& folder) { return "unix:" + folder.path(); }

/// A port that was free a moment ago.
std::string tcp_address() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return "tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

void expect_all_passed(const std::vector<Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].error_text, "") << "rank " << rank;
  }
}

struct SuiteParam {
  int size;
  bool by_tcp;
};

class SocketSuite : public ::testing::TestWithParam<SuiteParam> {};

TEST_P(SocketSuite, Passes) {
  const TemporaryFolder folder;
  const std::string address = GetParam().by_tcp ? tcp_address() : unix_address(folder);
  expect_all_passed(run_processes(GetParam().size, [&](int rank) {
    SocketGroup group({rank, GetParam().size, address, kLongTimeout_s, kSecret});
    for (const testing::CommunicatorCase& test : testing::communicator_cases()) test.run(group.communicator());
  }));
}

INSTANTIATE_TEST_SUITE_P(Socket, SocketSuite,
                         ::testing::Values(SuiteParam{1, false}, SuiteParam{2, false}, SuiteParam{4, false},
                                           SuiteParam{2, true}, SuiteParam{3, true}),
                         [](const auto& param_info) {
                           return (param_info.param.by_tcp ? "TcpOn" : "UnixOn") +
                                  std::to_string(param_info.param.size);
                         });

TEST(SocketGroup, RowsLargerThanTheBuffersOfSocketsMoveBothWaysAtOnce) {
  const TemporaryFolder folder;
  expect_all_passed(run_processes(2, [&](int rank) {
    SocketGroup group({rank, 2, unix_address(folder), kLongTimeout_s});
    constexpr int64_t kRows = 20000;
    const HostTensor src = testing::make_filled(DType::kFloat32, kRows, 2, 32, rank, 0);
    HostTensor dst(DType::kFloat32, kRows, 2, 32);
    const CastTensor tensors[] = {{src, dst}};
    const int peer = 1 - rank;
    group.communicator().group_cast({{{peer, {0, kRows}, 0}}, {{peer, {0, kRows}, 0}}}, tensors, "large")->wait();
    for (int64_t row = 0; row < kRows; row += 97) {
      ASSERT_EQ(dst.at(row, 1, 31), testing::element_value(peer, 0, row, 1, 31)) << "row " << row;
    }
  }));
}

/// Casts large rows to all others, so that a failure in the middle finds messages under way.
void cast_to_all(Communicator& comm, const char* label) {
  constexpr int64_t kRows = 5000;
  const HostTensor src = testing::make_filled(DType::kFloat32, kRows, 1, 64, comm.rank(), 0);
  HostTensor dst(DType::kFloat32, kRows * comm.size(), 1, 64);
  Exchange exchange;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    exchange.sends.push_back({peer, {0, kRows}, kRows * comm.rank()});
    exchange.recvs.push_back({peer, {kRows * peer, kRows * (peer + 1)}, 0});
  }
  const CastTensor tensors[] = {{src, dst}};
  comm.group_cast(exchange, tensors, label)->wait();
}

/// Three ranks, of which rank 1 fails before its second cast; the others must all throw `type` with `text`.
void expect_failure(const std::function<void(Communicator&)>& fail, const char* type, const char* text) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(
      3,
      [&](int rank) {
        SocketGroup group({rank, 3, unix_address(folder), kShortTimeout_s});
        Communicator& comm = group.communicator();
        cast_to_all(comm, "kv stage 1");
        if (rank == kVictim) fail(comm);
        if (rank == kVictim) return;
        cast_to_all(comm, "kv stage 2");
      },
      30);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_TRUE(outcomes[rank].ended) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].error_type, type) << "rank " << rank;
    EXPECT_THAT(outcomes[rank].error_text, HasSubstr(text)) << "rank " << rank;
  }
}

TEST(SocketGroup, KilledRankIsNamedByTheOthers) {
  expect_failure([](Communicator&) { raise(SIGKILL); }, "CommError",
                 "group_cast 'kv stage 2': rank 1 has ended without taking part");
}

TEST(SocketGroup, RankThatLeavesIsNamedByTheOthers) {
  expect_failure([](Communicator&) {}, "CommError", "group_cast 'kv stage 2': rank 1 has ended without taking part");
}

TEST(SocketGroup, StoppedRankIsNamedByTheOthersAtTheDeadline) {
  expect_failure([](Communicator&) { raise(SIGSTOP); }, "Timeout",
                 "group_cast 'kv stage 2': rank 1 did not take part within 2 s");
}

TEST(SocketGroup, LongWaitsAreMentionedBeforeTheyEnd) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(2, [&](int rank) {
    static std::atomic<int> num_notes = 0;
    set_log_sink([](std::string_view line) {
      if (line.starts_with("barrier 'saved': rank 0 has waited ") && line.find("for rank 1") != line.npos) ++num_notes;
    });
    SocketGroup group({rank, 2, unix_address(folder), 4});
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // from half of the time on
    group.communicator().barrier("saved");
    EXPECT_EQ(num_notes > 0, rank == 0);
  });
  expect_all_passed(outcomes);
}

TEST(SocketGroup, RankThatGivesUpTellsWhy) {
  expect_failure(
      [](Communicator& comm) {
        comm.abort("no luck");
        std::this_thread::sleep_for(std::chrono::seconds(2));
      },
      "CommError", "rank 1 gave up: no luck");
}

TEST(SocketGroup, RankThatNeverStartsIsNamedByTheOthers) {
  for (const bool by_tcp : {false, true}) {
    const TemporaryFolder folder;
    const std::string address = by_tcp ? tcp_address() : unix_address(folder);
    const auto outcomes = run_processes(
        3,
        [&](int rank) {
          if (rank == kVictim) return;
          SocketGroup group({rank, 3, address, kShortTimeout_s, kSecret});
        },
        30);
    EXPECT_EQ(outcomes[0].error_type, "Timeout");
    EXPECT_THAT(outcomes[0].error_text, HasSubstr("rank 1 did not start within 2 s"));
    EXPECT_EQ(outcomes[2].error_type, "Timeout");
  }
}

// A host that answers nothing, not even with a refusal: the system tries for two minutes.
TEST(SocketGroup, HostThatDropsConnectionsIsGivenUpAtTheDeadline) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 0), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  // No process accepts, so that soon the queue is full and later callers are not answered.
  std::vector<int> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    static_cast<void>(::connect(waiting.back(), reinterpret_cast<const sockaddr*>(&address), length));
  }
  const std::string root = fmt::format("tcp:127.0.0.1:{}", ntohs(address.sin_port));
  EXPECT_THAT([&] { SocketGroup({1, 2, root, kShortTimeout_s, kSecret}); },
              ::testing::ThrowsMessage<Timeout>(HasSubstr("rank 0 did not start within 2 s")));
  for (const int fd : waiting) ::close(fd);
  ::close(listener);
}

TEST(SocketGroup, RefusesConfigsThatCannotBe) {
  EXPECT_THROW(SocketGroup({2, 2, "unix:/tmp", 1}), InvalidArgument);
  EXPECT_THROW(SocketGroup({-1, 2, "unix:/tmp", 1}), InvalidArgument);
  EXPECT_THROW(SocketGroup({0, 2, "/tmp", 1}), InvalidArgument);
  EXPECT_THROW(SocketGroup({0, 2, "tcp:1234", 1}), InvalidArgument);
  EXPECT_THROW(SocketGroup({0, 2, "unix:/tmp", -1}), InvalidArgument);
  EXPECT_THROW(SocketGroup({0, 2, "unix:/no/such/folder", 1}), CommError);
  EXPECT_THROW(SocketGroup({0, 2, "unix:/tmp", 1, "short"}), InvalidArgument);
}

TEST(SocketGroup, RanksThatDisagreeOnTheSizeRefuse) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(
      2, [&](int rank) { SocketGroup group({rank, rank == 0 ? 2 : 3, unix_address(folder), kShortTimeout_s}); }, 30);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error_type, "InvalidArgument");
    EXPECT_THAT(outcome.error_text, HasSubstr("size must be the same on all ranks"));
  }
}

}  // namespace
}  // namespace tangram
