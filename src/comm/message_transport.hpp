// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MessageTransport: what transports between processes have in common that poll messages of each rank with each other,
// whatever carries these.
//
// NOTE [messages of an operation]: for each operation every rank sends every other its signature. When all have arrived
// and fit, each piece of each tensor is one message, in the order of RowMessages, which is the same on both sides. A
// rank that gives up tells all others, and one that waits says for whom: NOTE [who waits for whom].
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/progress_communicator.hpp"
#include "comm/wait_graph.hpp"
#include "core/log.hpp"

namespace tangram::comm {

enum class MessageKind { kSignature, kRows };

class MessageTransport : public Transport {
 public:
  MessageTransport(Caller caller, double timeout_s);

  /// A name of this host by which the other ranks reach it, numeric; empty where the transport does not know one.
  virtual std::string host_address() const { return {}; }

  Caller caller() const final { return caller_; }
  void execute(Operation& operation, double& started_s) final;
  void abort(std::string_view reason) noexcept final;
  bool needs_idle() const final { return true; }
  void idle() final;

  /// Whether some rank gave up or was lost.
  bool has_failed() const;

 protected:
  struct Failure {
    bool is_timeout = false;
    std::string text;
  };

  /// Begin a message, whose memory is theirs until `complete` ends.
  virtual void send(int peer, MessageKind kind, const void* data, int64_t num_bytes) = 0;
  virtual void receive(int peer, MessageKind kind, void* data, int64_t num_bytes) = 0;
  /// Polls until all messages have passed, noticing aborts and peers that are lost meanwhile. When it throws, nothing
  /// is written to memory any more.
  virtual void complete(const std::string& name) = 0;
  /// Between operations: takes what peers send on their own.
  virtual void poll() {}
  /// Failure that a peer reported when it gave up, if one did.
  virtual std::optional<Failure> failure_of_peer() = 0;
  /// Sends what WaitGraph says to every peer that takes it at once.
  virtual void tell_waiting(const std::vector<char>& bytes) = 0;
  /// Tells those peers that still listen, and waits for the others no longer than kTellPeers_s.
  virtual void tell_peers(const Failure& failure) = 0;
  static constexpr double kTellPeers_s = 0.5;

  /// Throws if a peer, or another thread of this rank, gave up.
  void notice_abort();
  /// Notes the end, tells the peers once, and throws it.
  [[noreturn]] void fail(Failure failure);
  [[noreturn]] void fail_ended(const std::string& name, int peer);
  /// Returns while the peers that are waited for have been silent for less than the timeout. This rank has waited
  /// since `begin_s`, for `silent_s` without any progress. What peers have said must be in `waits_`.
  void check_silence(const std::string& name, std::span<const int> peers, double begin_s, double silent_s);

  const Caller caller_;
  const double timeout_s_;
  WaitNotes notes_;
  WaitGraph waits_;  // NOTE [who waits for whom]

 private:
  void exchange_signatures(const Operation& operation);
  void move_rows(const Operation& operation);
  [[noreturn]] void throw_failure() const;

  std::vector<std::vector<char>> received_;  // encoded signatures, by rank
  std::vector<char> sent_;

  mutable std::mutex mutex_;  // over the following two
  std::optional<std::string> abort_reason_;
  std::optional<Failure> failure_;
};

}  // namespace tangram::comm
