// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A rank whose wait is interrupted closes the group, and its peers learn of it at once.
#include "core/interrupt.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>
#include <thread>

#include "comm/progress_communicator.hpp"
#include "comm/socket/socket_transport.hpp"
#include "tangram/error.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {
namespace {

using ::testing::HasSubstr;

constexpr double kLong_s = 60;

struct Signal {};

thread_local bool is_interrupted = false;
thread_local int num_postponed = 0;

void check() {
  if (is_interrupted) throw Signal();
}
void postpone(const std::exception_ptr&) noexcept {
  ++num_postponed;
  is_interrupted = false;
}

class CommInterruptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_interrupt_hook({check, postpone});
    is_interrupted = false;
    num_postponed = 0;
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<UniqueFd> connections(2);
      connections[static_cast<size_t>(1 - rank)] = UniqueFd(ends[rank]);
      ranks_[static_cast<size_t>(rank)] = std::make_unique<ProgressCommunicator>(
          std::make_unique<SocketTransport>(Caller{rank, 2}, std::move(connections), kLong_s));
    }
    begin_s_ = steady_seconds();
  }
  void TearDown() override {
    set_interrupt_hook({});
    EXPECT_LT(steady_seconds() - begin_s_, kLong_s / 2);
  }

  static std::string error_of(ProgressCommunicator& comm) {
    try {
      for (int i = 0; i < 2; ++i) comm.barrier("alone");  // rank 0 did come to the first
    } catch (const CommError& error) {
      return error.what();
    }
    return "none";
  }

  std::array<std::unique_ptr<ProgressCommunicator>, 2> ranks_;
  double begin_s_ = 0;
};

TEST_F(CommInterruptTest, WaitEndsAndTheGroupIsClosedOnAllRanks) {
  is_interrupted = true;
  EXPECT_THROW(ranks_[0]->barrier("alone"), Signal);
  is_interrupted = false;
  for (const auto& comm : ranks_) {
    EXPECT_THAT(error_of(*comm), HasSubstr("rank 0 gave up: a signal interrupted a call; its group is closed"));
  }
}

TEST_F(CommInterruptTest, HandleThatIsDestroyedPostponesIt) {
  float value = 0;
  const ConstTensorView send{&value, DType::kFloat32, 1, 1, 1, 1, 1};
  const TensorView recv{&value, DType::kFloat32, 1, 1, 1, 1, 1};
  const std::array<int64_t, 2> rows{0, 1};
  auto handle = ranks_[0]->all_to_all_v(send, rows, recv, rows, "alone");
  is_interrupted = true;
  handle.reset();
  EXPECT_EQ(num_postponed, 1);
}

TEST_F(CommInterruptTest, EndOfAGroupDoesNotWaitForASilentPeer) {
  ranks_[0]->refuse("no");
  is_interrupted = true;
  ranks_[0].reset();
  EXPECT_EQ(num_postponed, 1);
}

TEST_F(CommInterruptTest, RankThatWaitsForOthersToConnectHearsIt) {
  const auto folder = std::filesystem::temp_directory_path() / ("tangram-interrupt-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  for (const int rank : {0, 1}) {
    is_interrupted = true;
    EXPECT_THROW(SocketGroup({.rank = rank, .size = 2, .address = "unix:" + folder.string(), .timeout_s = kLong_s}),
                 Signal);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tangram::comm
