// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/listener.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/all_gather.hpp"
#include "comm/heap/process_identity.hpp"
#include "comm/message_transport.hpp"
#include "comm/socket/address.hpp"
#include "comm/socket/handshake.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// What a leader hands round: where it listens, or why it cannot, and the secret, of so many bytes.
struct Meeting {
  char address[128] = {};
  char problem[256] = {};
  char secret[512] = {};
  int32_t secret_bytes = 0;
};

void put(std::string_view text, char* to, size_t size) {
  std::memcpy(to, text.data(), std::min(text.size(), size - 1));
}

std::string drawn_secret() {
  std::string secret;
  for (int part = 0; part < 2; ++part) {
    for (const uint8_t byte : new_nonce()) secret += fmt::format("{:02x}", byte);
  }
  return secret;
}

}  // namespace

Listener listen_at_host(const std::string& host) {
  Address address = tcp_address(host, "0");
  Listener listener;
  listener.fd = UniqueFd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::bind(listener.fd.get(), address.get(), address.length) != 0 || ::listen(listener.fd.get(), SOMAXCONN) != 0) {
    throw CommError(fmt::format("Listener: {} must be an address of this host (got {})", host, std::strerror(errno)));
  }
  address = own_address(listener.fd.get());
  listener.address = fmt::format("{}:{}", host_of(address), ntohs(static_cast<uint16_t>(address.port())));
  return listener;
}

std::string host_address(Communicator& control) {
  std::string host;
  if (const auto* progress = dynamic_cast<const ProgressCommunicator*>(&control)) {
    if (const auto* transport = dynamic_cast<const MessageTransport*>(&progress->transport())) {
      host = transport->host_address();
    }
  }
  const ProcessIdentity own = ProcessIdentity::own();
  const std::vector<ProcessIdentity> ranks = all_gather(control, own, "hosts");
  if (!host.empty()) return host;
  const bool is_one_host = std::ranges::all_of(ranks, [&](const auto& rank) { return rank.is_same_host(own); });
  return is_one_host ? "127.0.0.1" : own.host;
}

SocketGroupConfig meeting_by_tcp(Communicator& control, const SubgroupPlace& place, const std::string& host,
                                 double timeout_s) {
  Listener listener;
  Meeting own;
  if (control.rank() == place.leader) {
    try {
      listener = listen_at_host(host);
      put(listener.address, own.address, sizeof(own.address));
    } catch (const Error& error) {
      put(error.what(), own.problem, sizeof(own.problem));
    }
    // A longer one is cut, and the same for all.
    const std::string secret = Env::get().secret.empty() ? drawn_secret() : Env::get().secret;
    put(secret, own.secret, sizeof(own.secret));
    own.secret_bytes = static_cast<int32_t>(std::min(secret.size(), sizeof(own.secret) - 1));
  }
  const std::vector<Meeting> all = all_gather(control, own, "meeting of nodes");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].problem[0] == '\0') continue;
    throw CommError(
        fmt::format("make_device_communicator: rank {} must be able to listen for ranks of other nodes (got {})", rank,
                    all[rank].problem));
  }
  const Meeting& meeting = all[static_cast<size_t>(place.leader)];
  SocketGroupConfig config{place.rank, place.size, fmt::format("tcp:{}", meeting.address), timeout_s};
  config.secret.assign(meeting.secret, static_cast<size_t>(meeting.secret_bytes));
  config.listener = listener.fd.release();
  return config;
}

}  // namespace tangram::comm
