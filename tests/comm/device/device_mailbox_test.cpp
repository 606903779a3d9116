// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Over passes whose memory is the host's: what is tested is which bytes go through which box.
#include "comm/device/device_mailbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "comm/device/host_memory_device.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"

namespace tangram::comm {
namespace {

using tangram::testing::HostMemoryDevice;
using ::testing::HasSubstr;

DeviceMailbox::Device host_memory() {
  return {[](void* to, const void* from, int64_t num_bytes, void*) {
            std::memcpy(to, from, static_cast<size_t>(num_bytes));
          },
          [](void*) {}};
}

constexpr DeviceMailbox::BoxBytes kBoxBytes{.small = 32, .large = 80};

/// counts[from][to], alike on all ranks.
std::vector<std::vector<int64_t>> random_counts(int size, int64_t bound, std::mt19937_64& rng) {
  std::vector<std::vector<int64_t>> counts(static_cast<size_t>(size), std::vector<int64_t>(static_cast<size_t>(size)));
  for (auto& row : counts) {
    for (int64_t& count : row) count = rng() % 3 == 0 ? 0 : static_cast<int64_t>(rng() % static_cast<uint64_t>(bound));
  }
  return counts;
}

int64_t longest_message(const std::vector<std::vector<int64_t>>& counts) {
  int64_t most = 0;
  for (size_t from = 0; from < counts.size(); ++from) {
    for (size_t to = 0; to < counts.size(); ++to) {
      if (from != to) most = std::max(most, counts[from][to]);
    }
  }
  return most;
}

/// Byte `i` of what `from` sends to `to` in message `number`.
char value(size_t from, size_t to, int64_t i, int number) {
  return static_cast<char>(from * 31 + to * 57 + static_cast<size_t>(i) * 7 + static_cast<size_t>(number) * 13);
}

TEST(DeviceMailboxTest, EveryByteComesToItsPlace) {
  for (const int size : {1, 2, 3, 5}) {
    run_local_ranks(size, [&](Communicator& control) {
      HostMemoryDevice device(control);
      DeviceMailbox mailbox(device, host_memory(), kBoxBytes);
      std::mt19937_64 rng(7);  // the same on all ranks
      const size_t rank = static_cast<size_t>(control.rank());
      int64_t num_boxes = 0;
      for (int number = 0; number < 40; ++number) {
        const auto counts = random_counts(size, number % 2 == 0 ? 33 : 400, rng);
        std::vector<int64_t> sent(counts.size()), received(counts.size());
        std::vector<char> send, recv, expected;
        for (size_t peer = 0; peer < counts.size(); ++peer) {
          sent[peer] = counts[rank][peer];
          received[peer] = counts[peer][rank];
          for (int64_t i = 0; i < sent[peer]; ++i) send.push_back(value(rank, peer, i, number));
          for (int64_t i = 0; i < received[peer]; ++i) expected.push_back(value(peer, rank, i, number));
        }
        recv.resize(expected.size());
        const int64_t most = longest_message(counts);
        mailbox.all_to_all({send.data(), sent, recv.data(), received, most}, nullptr);
        ASSERT_EQ(recv, expected) << size << " ranks, message " << number;
        const int64_t box = most <= kBoxBytes.small ? kBoxBytes.small : kBoxBytes.large;
        if (size > 1) num_boxes += (most + box - 1) / box;
      }
      // There are as many epochs as filled boxes, over at most two passes.
      ASSERT_LE(device.passes().size(), 2u);
      int64_t num_epochs = 0;
      for (const auto& pass : device.passes()) num_epochs += pass->num_epochs();
      EXPECT_EQ(num_epochs, num_boxes);
      EXPECT_EQ(device.failure(), "");
    });
  }
}

TEST(DeviceMailboxTest, RefusesCountsThatDoNotFit) {
  run_local_ranks(1, [](Communicator& control) {
    HostMemoryDevice device(control);
    DeviceMailbox mailbox(device, host_memory(), kBoxBytes);
    const std::vector<int64_t> one{8}, other{9}, none;
    char bytes[16] = {};
    const auto message = [&](const ByteMoves& moves) {
      try {
        mailbox.all_to_all(moves, nullptr);
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_THAT(message({bytes, none, bytes, one, 8}), HasSubstr("a count for each of 1 ranks (got 0 and 1)"));
    EXPECT_THAT(message({bytes, one, bytes, other, 8}), HasSubstr("got 8 and 9 bytes"));
    EXPECT_EQ(device.failure(), "");
  });
  run_local_ranks(2, [](Communicator& control) {
    HostMemoryDevice device(control);
    DeviceMailbox mailbox(device, host_memory(), kBoxBytes);
    const std::vector<int64_t> counts{17, 17};
    char bytes[64] = {};
    try {
      mailbox.all_to_all({bytes, counts, bytes, counts, 16}, nullptr);
      FAIL() << "accepted a message longer than the longest";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("counts must lie in [0, 16]"));
    }
  });
}

TEST(DeviceMailboxTest, TellsPeersWhenItCannotGoOn) {
  run_local_ranks(2, [](Communicator& control) {
    HostMemoryDevice device(control);
    DeviceMailbox::Device failing = host_memory();
    failing.synchronize = [](void*) { throw InvalidArgument("a graph is captured"); };
    DeviceMailbox mailbox(device, failing, kBoxBytes);
    const std::vector<int64_t> counts{8, 8};
    char send[16] = {}, recv[16] = {};
    EXPECT_THROW(mailbox.all_to_all({send, counts, recv, counts, 8}, nullptr), InvalidArgument);
    EXPECT_EQ(device.failure(), "gave up: a graph is captured");
  });
}

}  // namespace
}  // namespace tangram::comm
