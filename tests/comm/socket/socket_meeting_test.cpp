// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Who may take part in the meeting of a SocketGroup, and who is none of its ranks.
#include <dirent.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <thread>

#include "comm/process_group.hpp"
#include "comm/socket/handshake.hpp"
#include "comm/socket/hmac_sha256.hpp"
#include "comm/socket/link.hpp"
#include "tangram/error.hpp"
#include "tangram/socket_group.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kNever_s = 30;  // never reached
constexpr double kSoon_s = 2;    // long enough for threads to start on a busy machine
constexpr const char* kJobSecret = "the secret of this job";

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

/// A socket at a port that was free.
comm::UniqueFd bound_socket(uint16_t* port) {
  comm::UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof(address);
  ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  *port = ntohs(address.sin_port);
  return fd;
}

uint16_t free_port() {
  uint16_t port = 0;
  bound_socket(&port);
  return port;
}

std::string tcp(uint16_t port) { return fmt::format("tcp:127.0.0.1:{}", port); }

/// Connects as soon as a process listens.
comm::UniqueFd call(uint16_t port) {
  const sockaddr_in address = loopback(port);
  while (true) {
    comm::UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    std::this_thread::yield();
  }
}

void say(const comm::UniqueFd& fd, std::string_view bytes) {
  static_cast<void>(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

void say_hello(const comm::UniqueFd& fd, int rank, int size) {
  const comm::Hello hello{comm::Hello::kMagic, rank, size, 0, {}};
  say(fd, {reinterpret_cast<const char*>(&hello), sizeof(hello)});
}

/// True when the other end has closed the connection.
bool is_dropped(const comm::UniqueFd& fd) {
  char byte = 0;
  ssize_t count = 0;
  while ((count = ::recv(fd.get(), &byte, 1, 0)) > 0) {
  }
  return count == 0 || errno == ECONNRESET;
}

std::future<void> meet(int rank, int size, const std::string& address, const char* secret = kJobSecret,
                       double timeout_s = kNever_s) {
  return std::async(std::launch::async,
                    [=] { SocketGroup({rank, size, address, timeout_s, secret}).communicator().barrier("met"); });
}

TEST(Hmac, AgreesWithPublishedVectors) {
  const auto hex = [](const comm::Digest& digest) {
    std::string text;
    for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
    return text;
  };
  // FIPS 180-4, of no, one and two blocks.
  EXPECT_EQ(hex(comm::sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(comm::sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(comm::sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  // RFC 4231, cases 1, 2 and 6, whose key is longer than a block.
  EXPECT_EQ(hex(comm::hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(comm::hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(comm::hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Handshake, AProofIsWorthNothingElsewhere) {
  using comm::prove;
  using comm::same_digest;
  using comm::Side;
  const comm::Hello hello{comm::Hello::kMagic, 1, 2, 0, comm::new_nonce()};
  const comm::Nonce nonce = comm::new_nonce();
  const comm::Digest proof = prove(kJobSecret, Side::kConnects, 0, hello, nonce);
  EXPECT_TRUE(same_digest(proof, prove(kJobSecret, Side::kConnects, 0, hello, nonce)));
  EXPECT_FALSE(same_digest(proof, prove("another secret", Side::kConnects, 0, hello, nonce)));
  EXPECT_FALSE(same_digest(proof, prove(kJobSecret, Side::kAccepts, 0, hello, nonce)));
  EXPECT_FALSE(same_digest(proof, prove(kJobSecret, Side::kConnects, 1, hello, nonce)));
  EXPECT_FALSE(same_digest(proof, prove(kJobSecret, Side::kConnects, 0, hello, comm::new_nonce())));
  comm::Hello other = hello;
  other.size = 3;
  EXPECT_FALSE(same_digest(proof, prove(kJobSecret, Side::kConnects, 0, other, nonce)));
  other = hello;
  other.nonce = comm::new_nonce();
  EXPECT_FALSE(same_digest(proof, prove(kJobSecret, Side::kConnects, 0, other, nonce)));
}

// A probe of the network that connects and says nothing, or something else.
TEST(SocketRendezvous, StrangersDoNotKeepTheRanksFromMeeting) {
  const uint16_t port = free_port();
  std::future<void> rank_0 = meet(0, 2, tcp(port));
  const comm::UniqueFd silent = call(port), slow = call(port), talks = call(port);
  say(slow, "GET /");
  say(talks, "GET / HTTP/1.1 and much more than a rank says");
  EXPECT_TRUE(is_dropped(talks));
  EXPECT_NO_THROW(meet(1, 2, tcp(port)).get());
  EXPECT_NO_THROW(rank_0.get());
}

TEST(SocketRendezvous, PlausibleBytesAreNotAcceptedAsRank1) {
  const uint16_t port = free_port();
  std::future<void> rank_0 = meet(0, 2, tcp(port));
  const comm::UniqueFd liar = call(port);
  say_hello(liar, 1, 2);
  comm::Challenge challenge;
  ASSERT_EQ(::recv(liar.get(), &challenge, sizeof(challenge), MSG_WAITALL), static_cast<ssize_t>(sizeof(challenge)));
  // What rank 0 has just proved, as if it were this caller's own proof.
  say(liar, {reinterpret_cast<const char*>(&challenge.proof), sizeof(challenge.proof)});
  EXPECT_TRUE(is_dropped(liar));
  EXPECT_NO_THROW(meet(1, 2, tcp(port)).get());
  EXPECT_NO_THROW(rank_0.get());
}

TEST(SocketRendezvous, AHelloOfAWrongSizeOrRankDoesNotEndRank0) {
  const uint16_t port = free_port();
  std::future<void> rank_0 = meet(0, 2, tcp(port));
  for (const auto& [rank, size] : {std::pair{1, 3}, std::pair{0, 2}, std::pair{-5, 2}, std::pair{7, 2}}) {
    const comm::UniqueFd liar = call(port);
    say_hello(liar, rank, size);
    say(liar, std::string(sizeof(comm::Digest), 'x'));
    EXPECT_TRUE(is_dropped(liar));
  }
  EXPECT_NO_THROW(meet(1, 2, tcp(port)).get());
  EXPECT_NO_THROW(rank_0.get());
}

TEST(SocketRendezvous, TwoJobsAtOneAddressAreNotPairedCrosswise) {
  const uint16_t port = free_port();
  std::future<void> rank_0 = meet(0, 2, tcp(port));
  std::future<void> of_other_job = meet(1, 2, tcp(port), "the secret of another job", kSoon_s);
  EXPECT_THAT([&] { of_other_job.get(); },
              ThrowsMessage<Timeout>(HasSubstr("others were met that do not know the secret of this job")));
  EXPECT_NO_THROW(meet(1, 2, tcp(port)).get());
  EXPECT_NO_THROW(rank_0.get());
}

TEST(SocketRendezvous, APortThatRepeatsWhatItHearsIsNotTakenForRank0) {
  uint16_t port = 0;
  const comm::UniqueFd listener = bound_socket(&port);
  ASSERT_EQ(::listen(listener.get(), 64), 0);
  std::future<void> rank_1 = meet(1, 2, tcp(port), kJobSecret, kSoon_s);
  const comm::UniqueFd caller(::accept(listener.get(), nullptr, nullptr));
  char heard[sizeof(comm::Hello)];
  ASSERT_EQ(::recv(caller.get(), heard, sizeof(heard), MSG_WAITALL), static_cast<ssize_t>(sizeof(heard)));
  say(caller, std::string(heard, sizeof(heard)) + std::string(heard, sizeof(heard)));
  EXPECT_THAT([&] { rank_1.get(); }, ThrowsMessage<Timeout>(HasSubstr("rank 0 did not start")));
}

TEST(SocketRendezvous, ManySilentCallersDoNotUseUpRank0) {
  const uint16_t port = free_port();
  std::future<void> rank_0 = meet(0, 2, tcp(port));
  std::vector<comm::UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(call(port));
  EXPECT_TRUE(is_dropped(silent.front()));  // the oldest made room for later ones
  EXPECT_NO_THROW(meet(1, 2, tcp(port)).get());
  EXPECT_NO_THROW(rank_0.get());
}

TEST(SocketRendezvous, ByTcpASecretIsNeeded) {
  for (const int rank : {0, 1}) {
    EXPECT_THAT([&] { SocketGroup({rank, 2, tcp(free_port()), kSoon_s}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("need a secret of their job")));
  }
}

// Usual under Slurm: "the path of a socket must be shorter than 108 bytes".
TEST(SocketRendezvous, RanksMeetInAFolderOfALongPath) {
  const testing::TemporaryFolder top;
  const std::string folder = top.path() + "/" + std::string(145, 'x');
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(meet(rank, 3, "unix:" + folder));
  for (std::future<void>& rank : ranks) EXPECT_NO_THROW(rank.get());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_THAT([&] { SocketGroup({0, 2, "unix:" + folder + "/none", kSoon_s}); },
              ThrowsMessage<CommError>(HasSubstr("must be able to open the folder")));
}

/// Local addresses of the TCP sockets of this process that listen, as /proc shows them: hexadecimal.
std::set<std::string> listening_addresses() {
  std::set<std::string> own_sockets, addresses;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    char link[64] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), link, sizeof(link) - 1) > 0) own_sockets.insert(link);
  }
  ::closedir(folder);
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, rest, inode;
    words >> number >> local >> remote >> state >> rest >> rest >> rest >> rest >> rest >> inode;
    if (state == "0A" && own_sockets.count("socket:[" + inode + "]") != 0) addresses.insert(local.substr(0, 8));
  }
  return addresses;
}

TEST(SocketRendezvous, RanksListenOnTheChosenInterfaceOnly) {
  const uint16_t port = free_port();
  std::future<void> rank_0 = meet(0, 3, tcp(port)), rank_1 = meet(1, 3, tcp(port));
  // Rank 2 has not come, so both wait for it; rank 1 listens from when it has reached rank 0.
  std::set<std::string> seen;
  for (int i = 0; i < 100 || (seen.empty() && i < 20000); ++i) {
    seen.merge(listening_addresses());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(seen, std::set<std::string>{"0100007F"});
  EXPECT_NO_THROW(meet(2, 3, tcp(port)).get());
  EXPECT_NO_THROW(rank_0.get());
  EXPECT_NO_THROW(rank_1.get());
}

}  // namespace
}  // namespace tangram
