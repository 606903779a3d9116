// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/mpi/beacon.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>

#include "comm/progress_communicator.hpp"

namespace tangram::comm {

namespace {

// A message is one of these, the sender's rank, and after a space what it tells.
constexpr char kAsk = '?', kAnswer = '!', kTell = ':';
constexpr size_t kMaxMessage = 1024;
constexpr int kMaxRank = 1 << 20;  // what strangers write into the socket must not take memory

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;

  Address(const std::string& job, int rank) {
    // A leading zero byte makes the name abstract: no file is left behind.
    const std::string name = fmt::format("tangram-{}-{}", job, rank).substr(0, sizeof(address.sun_path) - 1);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

}  // namespace

Beacon::Beacon(std::string job, int rank)
    : job_(std::move(job)), rank_(rank), socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const Address address(job_, rank);
  if (socket_ >= 0 && bind(socket_, address.get(), address.length) != 0) {
    close(socket_);
    socket_ = -1;
  }
}

Beacon::~Beacon() {
  if (socket_ >= 0) close(socket_);
}

bool Beacon::sees(int rank) const {
  if (socket_ < 0) return true;
  const int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;
  const Address address(job_, rank);
  const bool refused = connect(probe, address.get(), address.length) != 0 && errno == ECONNREFUSED;
  close(probe);
  return !refused;
}

void Beacon::send(int rank, std::string_view message) const {
  const Address address(job_, rank);
  // Who does not take it in time is not there, or is asked again.
  static_cast<void>(
      ::sendto(socket_, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL, address.get(), address.length));
}

void Beacon::ask(int num_ranks) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank != rank_) send(rank, fmt::format("{}{}", kAsk, rank_));
  }
}

void Beacon::tell(int num_ranks, std::string_view text) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank != rank_) send(rank, fmt::format("{}{} {}", kTell, rank_, text).substr(0, kMaxMessage));
  }
}

void Beacon::listen() {
  char buffer[kMaxMessage];
  while (true) {
    const ssize_t count = ::recv(socket_, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (count < 0) return;
    const std::string_view message(buffer, static_cast<size_t>(count));
    int rank = -1;
    if (message.empty()) continue;
    const auto [end, error] = std::from_chars(buffer + 1, buffer + count, rank);
    if (error != std::errc() || rank < 0 || rank >= kMaxRank) continue;
    if (message[0] == kAsk) send(rank, fmt::format("{}{}", kAnswer, rank_));
    if (message[0] == kAnswer) {
      if (heard_s_.size() <= static_cast<size_t>(rank)) heard_s_.resize(static_cast<size_t>(rank) + 1);
      heard_s_[static_cast<size_t>(rank)] = steady_seconds();
    }
    if (message[0] == kTell && end != buffer + count)
      told_ = std::string(message.substr(static_cast<size_t>(end - buffer) + 1));
  }
}

double Beacon::heard_s(int rank) const {
  return static_cast<size_t>(rank) < heard_s_.size() ? heard_s_[static_cast<size_t>(rank)] : 0;
}

}  // namespace tangram::comm
