// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SocketTransport: operations over connections of each rank with each other, polled with a deadline.
//
// NOTE [socket messages]: for each operation every rank sends every other its signature. When all have come and fit,
// each piece of each tensor is one message, in the order of RowMessages. A rank that gives up tells all others; one
// that dies is seen at once, because the kernel closes its connections.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/progress_communicator.hpp"
#include "comm/socket/link.hpp"

namespace tangram::comm {

class SocketTransport final : public Transport {
 public:
  /// `connections[r]` leads to rank r; the own entry is empty.
  SocketTransport(Place place, std::vector<UniqueFd> connections, double timeout_s);

  Place place() const override { return place_; }
  std::string_view name() const override { return "socket"; }
  void execute(Operation& operation, double& started_s) override;
  void abort(std::string_view reason) noexcept override;
  bool needs_idle() const override { return true; }
  void idle() override;

 private:
  struct Failure {
    bool is_timeout = false;
    std::string text;
  };

  void exchange_signatures(const Operation& operation);
  void move_rows(const Operation& operation);
  /// Steps all links until they are idle. Throws when a peer lets nothing through for the timeout, has ended, or gave
  /// up.
  void complete(const std::string& name);
  void check_links(const std::string& name, double silent_s);
  void wait_ready(double seconds);
  /// Whether another thread of this rank, or a peer, gave up.
  void notice_abort();
  [[noreturn]] void fail(Failure failure);
  void tell_peers(const Failure& failure);
  [[noreturn]] void throw_failure() const;

  const Place place_;
  const double timeout_s_;
  std::vector<std::optional<Link>> links_;
  std::vector<std::vector<char>> received_;  // encoded signatures, by rank
  std::vector<char> sent_;

  mutable std::mutex mutex_;  // over the following two
  std::optional<std::string> abort_reason_;
  std::optional<Failure> failure_;
};

}  // namespace tangram::comm
