// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MpiTransport: operations over point-to-point messages of OpenMPI, polled with a deadline. No collective of MPI is
// used: it would not say who is missing.
//
// NOTE [mpi messages]: for each operation every rank sends every other its signature (tag kSignature). When all have
// come and fit, each piece of each tensor is one message (tag kRows; several when it is large), in the order of tensors
// and pieces, which is the same on both sides. A rank that gives up tells all others (tag kAbort).
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_api.hpp"
#include "comm/progress_communicator.hpp"

namespace tangram::comm {

class Beacon;

class MpiTransport final : public Transport {
 public:
  /// `beacon` tells which peers live; null when they are on several hosts.
  MpiTransport(const MpiApi& api, const Beacon* beacon, double timeout_s);

  Place place() const override { return place_; }
  std::string_view name() const override { return "mpi"; }
  void execute(Operation& operation, double& started_s) override;
  void abort(std::string_view reason) noexcept override;
  bool needs_idle() const override { return true; }
  void idle() override;

  /// Whether some rank gave up or was lost. Then MPI must not be shut down properly: that would wait for it.
  bool has_failed() const;

 private:
  struct Failure {
    bool is_timeout = false;
    std::string text;
  };
  /// Messages under way.
  struct Pending {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    std::vector<char> is_receive;
  };

  void send(Pending& pending, int peer, int tag, const void* data, int64_t num_bytes);
  void receive(Pending& pending, int peer, int tag, void* data, int64_t num_bytes);
  /// Polls until all are done. Throws when a peer lets nothing through for the timeout, has died, or gave up.
  void complete(Pending& pending, const std::string& name);
  bool remove_finished(Pending& pending);
  void check_peers(const Pending& pending, const std::string& name, double silent_s);
  void exchange_signatures(const Operation& operation);
  void move_rows(const Operation& operation);

  /// Whether a peer, or another thread of this rank, gave up.
  void notice_abort();
  /// Notes the end, tells the peers once, and throws it.
  [[noreturn]] void fail(Failure failure);
  void tell_peers(const Failure& failure);
  [[noreturn]] void throw_failure() const;

  const MpiApi& api_;
  const Beacon* beacon_;
  const double timeout_s_;
  Place place_;
  std::vector<std::vector<char>> received_;  // encoded signatures, by rank
  std::vector<char> sent_;
  std::vector<char> abort_message_;  // kept: a lost peer never takes it

  mutable std::mutex mutex_;  // over the following two
  std::optional<std::string> abort_reason_;
  std::optional<Failure> failure_;
};

}  // namespace tangram::comm
