// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/address.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstring>

#include "tangram/error.hpp"

namespace tangram::comm {

uint32_t Address::port() const {
  return family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                              : reinterpret_cast<const sockaddr_in&>(storage).sin_port;
}

void Address::set_port(uint32_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = static_cast<in_port_t>(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = static_cast<in_port_t>(port);
  }
}

Address unix_address(const std::string& path) {
  Address address;
  sockaddr_un un = {};
  un.sun_family = AF_UNIX;
  if (path.size() >= sizeof(un.sun_path)) {
    throw CommError(fmt::format("SocketGroup: the path of a socket must be shorter than {} bytes (got {})",
                                sizeof(un.sun_path), path));
  }
  std::memcpy(un.sun_path, path.data(), path.size());
  std::memcpy(&address.storage, &un, sizeof(un));
  address.length = sizeof(un);
  return address;
}

Address tcp_address(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (status != 0) {
    throw CommError(
        fmt::format("SocketGroup: the address must resolve (got {}:{}: {})", host, port, ::gai_strerror(status)));
  }
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

std::string host_of(const Address& address) {
  char host[NI_MAXHOST] = {};
  if (address.family() != AF_INET && address.family() != AF_INET6) return {};
  const int status =
      ::getnameinfo(address.get(), address.length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST | NI_NUMERICSERV);
  return status == 0 ? host : std::string();
}

Address own_address(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

bool leads_to_itself(int fd) {
  Address peer;
  peer.length = sizeof(peer.storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0) return false;
  const Address own = own_address(fd);
  if (own.family() == AF_UNIX || own.length != peer.length) return false;
  return std::memcmp(&own.storage, &peer.storage, own.length) == 0;
}

}  // namespace tangram::comm
