// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/heap/fd_exchange.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "comm/all_gather.hpp"
#include "comm/progress_communicator.hpp"
#include "core/interrupt.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

struct Message {
  uint64_t group = 0;  // name of the receiver's socket, so that a stray message is known
  uint64_t round = 0;
  int64_t rank = 0;
};

/// A name in the abstract name space, which vanishes with the socket.
socklen_t abstract_address(uint64_t name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::string text = fmt::format("tangram_fd_{:x}", name);
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

/// The name that the socket got, 0 when it got none. Drawn, because process numbers repeat in containers that share a
/// network.
uint64_t bind_to_new_name(int fd) {
  constexpr int kNumTries = 8;
  std::random_device random;
  for (int i = 0; i < kNumTries; ++i) {
    const uint64_t name = (uint64_t{random()} << 32 | random()) | 1;
    sockaddr_un address;
    const socklen_t length = abstract_address(name, address);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) return name;
    if (errno != EADDRINUSE) break;
  }
  return 0;
}

}  // namespace

FdExchange::FdExchange(Communicator& control, double timeout_s)
    : control_(control), timeout_s_(timeout_s), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  names_ = all_gather(control, bind_to_new_name(socket_.get()), "sockets for file descriptors");
  for (size_t rank = 0; rank < names_.size(); ++rank) {
    if (names_[rank] == 0) throw CommError(fmt::format("FdExchange: rank {} must be able to bind a socket", rank));
  }
}

std::vector<UniqueFd> FdExchange::exchange(int fd) {
  const double deadline_s = steady_seconds() + timeout_s_;
  const int size = control_.size(), rank = control_.rank();
  std::vector<UniqueFd> received(static_cast<size_t>(size));
  std::vector<char> sent(static_cast<size_t>(size), 0);
  ++round_;
  const OnInterrupt give_up([this] { control_.abort(kInterruptReason); });
  InterruptClock interrupts;
  while (true) {
    std::string missing;
    bool all_sent = true;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      char& is_sent = sent[static_cast<size_t>(peer)];
      if (!is_sent) is_sent = send_to(peer, fd);
      all_sent = all_sent && is_sent;
      if (!received[static_cast<size_t>(peer)]) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", peer);
    }
    if (missing.empty() && all_sent) return received;
    if (steady_seconds() > deadline_s) {
      throw Timeout(fmt::format("FdExchange: no descriptor came from rank {} within {:g} s (noticed by rank {})",
                                missing, timeout_s_, rank));
    }
    interrupts.check();
    pollfd polled{socket_.get(), POLLIN, 0};
    if (::poll(&polled, 1, 2) > 0) receive(received);
  }
}

bool FdExchange::send_to(int peer, int fd) {
  sockaddr_un address;
  const socklen_t length = abstract_address(names_[static_cast<size_t>(peer)], address);
  Message message{names_[static_cast<size_t>(peer)], round_, control_.rank()};
  iovec part{&message, sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_name = &address;
  header.msg_namelen = length;
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  // A full queue, or a peer that has gone: tried again until the deadline.
  return ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(message));
}

void FdExchange::receive(std::vector<UniqueFd>& received) {
  Message message;
  iovec part{&message, sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t count = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* rights = count < 0 ? nullptr : CMSG_FIRSTHDR(&header);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof(int));
  UniqueFd owned(fd);
  // The ranks meet on `control` between rounds, so nothing of another round can come.
  const bool is_ours = count == static_cast<ssize_t>(sizeof(message)) && message.rank >= 0 &&
                       message.rank < control_.size() && message.round == round_ &&
                       message.group == names_[static_cast<size_t>(control_.rank())];
  if (is_ours) received[static_cast<size_t>(message.rank)] = std::move(owned);
}

}  // namespace tangram::comm
