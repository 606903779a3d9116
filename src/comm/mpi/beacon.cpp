// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/mpi/beacon.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace tangram::comm {

namespace {

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
    : job_(std::move(job)), socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
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

}  // namespace tangram::comm
