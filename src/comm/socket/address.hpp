// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Addresses of sockets: of a host and port, or of a file.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace tangram::comm {

/// Plain data: rank 0 sends it to other ranks.
struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint32_t port() const;  // network order
  void set_port(uint32_t port);
};

/// Throws CommError unless the path is shorter than the system takes, about 108 bytes.
Address unix_address(const std::string& path);
/// Throws CommError unless the host resolves.
Address tcp_address(const std::string& host, const std::string& port);

/// The host of an address of TCP, numeric; empty for others.
std::string host_of(const Address& address);

/// The socket's own end, and that of who is connected with it.
Address own_address(int fd);
/// Whether a connection leads to itself: the system may pick, for who connects to a free port of this host, that port.
bool leads_to_itself(int fd);

}  // namespace tangram::comm
