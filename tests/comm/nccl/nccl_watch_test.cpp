// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What ranks say when NCCL has failed: when a network card is lost while hosts still reach each other, above all.
// Ranks are processes on two forged hosts; a TCP connection between their second cards stands in for NCCL.
#include "comm/nccl/nccl_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/control_links.hpp"
#include "comm/device/failure_text.hpp"
#include "comm/device/forged_hosts.hpp"
#include "comm/nccl/nccl_api.hpp"
#include "comm/nodes/listener.hpp"
#include "comm/process_group.hpp"
#include "comm/socket/address.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {
namespace {

using cuda::WaitFailure;
using cuda::WaitKind;
using testing::ForgedHosts;
using ::testing::HasSubstr;
using testing::Outcome;

constexpr int kSystemError = 2;  // of NCCL
constexpr const char* kSystemErrorText = "unhandled system error";
const RankNames kNames{{}, {"a", "b"}};

/// Bytes that go on and on between the cards of two hosts.
class CardTraffic {
 public:
  CardTraffic(int rank, UniqueFd listener, const std::string& address) {
    if (rank == 0) {
      pollfd wait{listener.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&wait, 1, 20000), 1);
      fd_ = UniqueFd(::accept(listener.get(), nullptr, nullptr));
    } else {
      const size_t colon = address.rfind(':');
      const Address to = tcp_address(address.substr(0, colon), address.substr(colon + 1));
      fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::connect(fd_.get(), to.get(), to.length), 0);
    }
    const unsigned user_timeout_ms = 500;
    EXPECT_EQ(::setsockopt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms)), 0);
  }
  /// Sends a little, and takes what has come. What ncclCommGetAsyncError would say.
  int result() {
    char bytes[256] = {};
    const bool sent = ::send(fd_.get(), bytes, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 || errno == EAGAIN;
    const bool came = ::recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0 || errno == EAGAIN;
    return sent && came ? NcclApi::kSuccess : kSystemError;
  }

 private:
  UniqueFd fd_;
};

/// What check() of the group would throw, once the rank knows of a failure.
[[noreturn]] void throw_what_is_known(const HostControlBlock& block, int rank, double timeout_s) {
  uint64_t word = HostControlBlock::load(block.row(rank).report);
  if (word == 0) word = HostControlBlock::load(block.row(rank).host_abort);
  const WaitFailure failure = cuda::unpack(word);
  throw_failure(failure, failure_text(failure, {"forward"}, timeout_s, block.row(failure.peer).text, kNames));
}

/// Two ranks, one on each host, in the middle of a transfer when the card of host 1 goes. `is_told`: NCCL reports it.
std::vector<Outcome> lose_card(const ForgedHosts& hosts, double timeout_s, bool is_told) {
  Listener control = listen_at_host(ForgedHosts::kAddress[0]), card = listen_at_host(ForgedHosts::kCardAddress[0]);
  return testing::run_processes(2, [&](int rank) {
    hosts.enter(rank);
    Env env = Env::get();
    env.node_id = rank == 0 ? "a" : "b";
    Env::set(env);
    SocketGroupConfig config{rank, 2, "tcp:" + control.address, 30, std::string(32, 's')};
    if (rank == 0) config.listener = ::dup(control.fd.get());
    SocketGroup group(config);
    HostControlBlock block(group.communicator(), 30);
    ControlLinks links(block, group.communicator(), timeout_s);
    Watchdog watchdog(block, rank, timeout_s, [](const WaitFailure&, double) {});
    CardTraffic traffic(rank, std::move(card.fd), card.address);
    NcclWatch watch({block, rank, timeout_s, [](const WaitFailure&, double) {},
                     [&](std::string_view reason) { block.give_up(rank, reason); },
                     [](int peer) { return kNames.text(peer); }});
    EXPECT_EQ(traffic.result(), NcclApi::kSuccess);
    cuda::ControlBlockRow& own = block.row(rank);
    HostControlBlock::store(own.progress, 1);
    HostControlBlock::store(own.operation, cuda::pack({WaitKind::kReadyFlag, rank, 0, 0, 0, 1}));
    group.communicator().barrier("under way");
    if (rank == 1) ForgedHosts::lose_card();
    for (int i = 0; i < 4000 && !watch.has_failed(); ++i) {
      watch.look_at_deadline();
      const int result = traffic.result();
      if (is_told) watch.look_at_result(result, kSystemErrorText);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    group.communicator().barrier("hosts still reach each other");
    throw_what_is_known(block, rank, timeout_s);
  });
}

/// In a process of its own, which changes its name spaces; skipped where it cannot.
void on_forged_hosts(const std::function<void(const ForgedHosts&)>& look) {
  const auto tries = testing::run_processes(1, [&](int) { look(ForgedHosts()); });
  if (tries[0].error_text.find("forged hosts") != std::string::npos) GTEST_SKIP() << tries[0].error_text;
  EXPECT_EQ(tries[0].error_text, "");
  EXPECT_EQ(tries[0].exit_code, 0);
}

TEST(NcclWatch, ACardThatIsLostNamesBothEndsOfItsRail) {
  on_forged_hosts([](const ForgedHosts& hosts) {
    for (const Outcome& outcome : lose_card(hosts, 20, true)) {
      EXPECT_EQ(outcome.error_type, "CommError") << outcome.error_text;
      EXPECT_THAT(outcome.error_text, HasSubstr("gave up: NCCL: unhandled system error, waiting for rank"));
      EXPECT_THAT(outcome.error_text, HasSubstr("rank 0 (node a)"));
      EXPECT_THAT(outcome.error_text, HasSubstr("rank 1 (node b)"));
      EXPECT_LT(outcome.seconds, 15) << "before the timeout";
    }
  });
}

TEST(NcclWatch, ACardThatIsLostInSilenceIsATimeoutOfTheRail) {
  on_forged_hosts([](const ForgedHosts& hosts) {
    const std::vector<Outcome> outcomes = lose_card(hosts, 2, false);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.error_type, "Timeout") << outcome.error_text;
      EXPECT_THAT(outcome.error_text, HasSubstr("(node"));
      EXPECT_THAT(outcome.error_text, HasSubstr("(noticed by rank"));
      EXPECT_LT(outcome.seconds, 20);
    }
  });
}

// A process that was killed ends its connections: NCCL says so before the control block knows who it was.
TEST(NcclWatch, APeerThatIsGoneIsLeftToThoseWhoKnowItsName) {
  run_local_ranks(2, [](Communicator& comm) {
    HostControlBlock block(comm, 30);
    if (comm.rank() == 0) {
      int num_given_up = 0;
      NcclWatch watch({block, 0, 30, [](const WaitFailure&, double) {}, [&](std::string_view) { ++num_given_up; },
                       [](int) { return std::string("rank 1"); }});
      watch.look_at_result(NcclApi::kInProgress, "");
      watch.look_at_result(NcclApi::kRemoteError, "remote process exited");
      EXPECT_EQ(num_given_up, 0);
      std::this_thread::sleep_for(std::chrono::duration<double>(kNcclNaming_s + 0.1));
      watch.look_at_result(NcclApi::kRemoteError, "remote process exited");
      EXPECT_EQ(num_given_up, 1) << "no rank said a name";
    }
    comm.barrier("looked");
  });
}

}  // namespace
}  // namespace tangram::comm
