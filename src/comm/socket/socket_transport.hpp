// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SocketTransport: operations over connections of each rank with each other, polled with a deadline. A rank that dies
// is seen at once, because the kernel closes its connections. See NOTE [messages of an operation].
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/message_transport.hpp"
#include "comm/socket/link.hpp"
#include "core/fork.hpp"

namespace tangram::comm {

class SocketTransport final : public MessageTransport {
 public:
  /// `connections[r]` leads to rank r; the own entry is empty.
  SocketTransport(Caller caller, std::vector<UniqueFd> connections, double timeout_s);

  std::string_view name() const override { return "socket"; }
  /// The own end of a connection by TCP.
  std::string host_address() const override { return host_address_; }

 private:
  void send(int peer, MessageKind kind, const void* data, int64_t num_bytes) override;
  void receive(int peer, MessageKind kind, void* data, int64_t num_bytes) override;
  /// Steps all links until they are idle.
  void complete(const std::string& name) override;
  void poll() override;
  std::optional<Failure> failure_of_peer() override;
  void tell_waiting(const std::vector<char>& bytes) override;
  void tell_peers(const Failure& failure) override;

  void hear();
  void check_links(const std::string& name, double begin_s, double silent_s);
  void wait_ready(double seconds);

  const std::string host_address_;
  std::vector<std::optional<Link>> links_;
  ClosedInChildren closed_in_children_;  // before the links close them
};

}  // namespace tangram::comm
