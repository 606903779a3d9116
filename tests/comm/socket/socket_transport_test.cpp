// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks as threads over pairs of sockets, one of which the test plays itself, so that it can stop anywhere.
#include "comm/socket/socket_transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/wire.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// connections[a][b] leads from rank a to rank b.
std::vector<std::vector<UniqueFd>> make_connections(int size) {
  const size_t count = static_cast<size_t>(size);
  std::vector<std::vector<UniqueFd>> connections(count);
  for (std::vector<UniqueFd>& of_rank : connections) of_rank.resize(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      int ends[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      connections[a][b] = UniqueFd(ends[0]);
      connections[b][a] = UniqueFd(ends[1]);
    }
  }
  return connections;
}

std::string text_of_timeout(Communicator& comm, const std::vector<const char*>& barriers) {
  try {
    for (const char* label : barriers) comm.barrier(label);
  } catch (const Timeout& error) {
    return error.what();
  }
  return "no timeout";
}

// A rank that had got something from the stopped one went on, and blamed those who wait for the stopped one as well.
TEST(SocketTransport, RankThatWaitsForAStoppedOneIsNotBlamed) {
  constexpr int kSize = 4, kStopped = 1, kStuck = 2;
  auto connections = make_connections(kSize);
  const std::vector<char> signature = encode(make_barrier("a").signature, kSize);
  std::vector<Link> stopped;
  for (const int peer : {0, 3}) {  // and not to kStuck
    stopped.emplace_back(std::move(connections[kStopped][static_cast<size_t>(peer)]));
    stopped.back().send(Link::Kind::kSignature, signature.data(), std::ssize(signature));
    stopped.back().step();
  }
  std::vector<std::string> texts(kSize);
  std::vector<std::thread> ranks;
  for (const int rank : {0, kStuck, 3}) {
    ranks.emplace_back([&, rank] {
      // The stuck one is patient, so that others notice first.
      const double timeout_s = rank == kStuck ? 5 : 2;
      auto& own = connections[static_cast<size_t>(rank)];
      ProgressCommunicator comm(std::make_unique<SocketTransport>(Caller{rank, kSize}, std::move(own), timeout_s));
      texts[static_cast<size_t>(rank)] = text_of_timeout(comm, {"a", "b"});
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const int rank : {0, 3}) {
    EXPECT_THAT(texts[static_cast<size_t>(rank)], StartsWith("barrier 'b': rank 1 did not take part within 2 s"));
  }
  EXPECT_THAT(texts[kStuck], StartsWith("barrier 'a': rank 1 did not take part within"));
}

TEST(SocketTransport, RanksThatWaitForEachOtherBlameNoRank) {
  auto connections = make_connections(2);
  Link peer(std::move(connections[1][0]));
  std::atomic<bool> is_done = false;
  std::thread says([&] {
    while (!is_done) {
      peer.say_waiting({1});  // for rank 0
      peer.step();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  ProgressCommunicator comm(std::make_unique<SocketTransport>(Caller{0, 2}, std::move(connections[0]), 2));
  EXPECT_THAT(text_of_timeout(comm, {"a"}), HasSubstr("whose fault it is cannot be known"));
  is_done = true;
  says.join();
}

}  // namespace
}  // namespace tangram::comm
