// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MpiTransport: operations over point-to-point messages of OpenMPI, polled with a deadline. No collective of MPI is
// used: it would not say who is missing. Large messages (NOTE [messages of an operation]) are cut into several.
// Signatures, rows, and reports of ranks that wait or give up have tags of their own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/message_transport.hpp"
#include "comm/mpi/mpi_api.hpp"

namespace tangram::comm {

class Beacon;

/// Once it has failed, MPI must not be shut down properly: that would wait for the ranks that are lost.
class MpiTransport final : public MessageTransport {
 public:
  /// `beacon` tells which peers live; null when they are on several hosts.
  MpiTransport(const MpiApi& api, Beacon* beacon, double timeout_s);

  std::string_view name() const override { return "mpi"; }

 private:
  /// Messages under way.
  struct Pending {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    std::vector<char> is_receive;
  };

  void send(int peer, MessageKind kind, const void* data, int64_t num_bytes) override;
  void receive(int peer, MessageKind kind, void* data, int64_t num_bytes) override;
  void complete(const std::string& name) override;
  void poll() override;
  std::optional<Failure> failure_of_peer() override;
  void tell_waiting(const std::vector<char>& bytes) override;
  void tell_peers(const Failure& failure) override;

  void send(Pending& pending, int peer, int tag, const void* data, int64_t num_bytes);
  bool remove_finished(Pending& pending);
  void poll_until_done(const std::string& name);
  void check_peers(const std::string& name, double begin_s, double silent_s);
  void hear();

  const MpiApi& api_;
  Beacon* beacon_;
  Pending pending_;                  // of the operation
  std::vector<char> abort_message_;  // kept: a lost peer never takes it
  // What was said last of whom this rank waits for, kept as well. Only who has taken it hears of it again.
  Pending waiting_;
  std::vector<std::vector<char>> waiting_messages_;  // by rank
};

}  // namespace tangram::comm
