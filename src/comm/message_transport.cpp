// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/message_transport.hpp"

#include <fmt/format.h>

#include "comm/row_messages.hpp"
#include "comm/wire.hpp"
#include "core/joined.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

MessageTransport::MessageTransport(Caller caller, double timeout_s)
    : caller_(caller),
      timeout_s_(timeout_s),
      notes_(timeout_s),
      waits_(caller, timeout_s),
      received_(static_cast<size_t>(caller.size), std::vector<char>(encoded_size(caller.size))) {}

void MessageTransport::execute(Operation& operation, double& started_s) {
  notice_abort();
  exchange_signatures(operation);
  started_s = steady_seconds();
  std::vector<Signature> decoded;
  std::vector<const Signature*> signatures;
  decoded.reserve(received_.size());
  for (const std::vector<char>& bytes : received_) {
    decoded.push_back(decode(bytes, caller_.size));
    signatures.push_back(&decoded.back());
  }
  const std::string disagreement = find_disagreement(signatures);
  require(disagreement.empty(), "{}", disagreement);
  move_rows(operation);
}

void MessageTransport::exchange_signatures(const Operation& operation) {
  sent_ = encode(operation.signature, caller_.size);
  received_[static_cast<size_t>(caller_.rank)] = sent_;
  for (int peer = 0; peer < caller_.size; ++peer) {
    if (peer == caller_.rank) continue;
    receive(peer, MessageKind::kSignature, received_[static_cast<size_t>(peer)].data(), std::ssize(sent_));
    send(peer, MessageKind::kSignature, sent_.data(), std::ssize(sent_));
  }
  complete(operation.name());
}

void MessageTransport::move_rows(const Operation& operation) {
  RowMessages messages(operation, caller_);
  for (const RowMessages::Incoming& in : messages.incoming()) {
    receive(in.peer, MessageKind::kRows, in.data, in.num_bytes);
  }
  for (const RowMessages::Outgoing& out : messages.outgoing()) {
    send(out.peer, MessageKind::kRows, out.data, out.num_bytes);
  }
  complete(operation.name());
  messages.finish();
}

void MessageTransport::notice_abort() {
  std::optional<std::string> reason;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_failure();
    reason = abort_reason_;
  }
  if (reason) fail({false, fmt::format("rank {} gave up: {}", caller_.rank, *reason)});
  std::optional<Failure> told = failure_of_peer();
  if (!told) return;
  const std::lock_guard lock(mutex_);
  failure_ = std::move(told);
  throw_failure();
}

void MessageTransport::fail(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
  }
  tell_peers(failure);
  throw_failure();
}

void MessageTransport::fail_ended(const std::string& name, int peer) {
  fail(
      {false, fmt::format("{}: rank {} has ended without taking part (noticed by rank {})", name, peer, caller_.rank)});
}

void MessageTransport::check_silence(const std::string& name, std::span<const int> peers, double begin_s,
                                     double silent_s) {
  const double now_s = steady_seconds();
  if (!peers.empty() && waits_.is_due(begin_s, now_s)) tell_waiting(waits_.encode(peers));
  if (silent_s < timeout_s_ / 2) notes_.reset();
  const bool is_over = silent_s >= timeout_s_;
  if (!is_over && !notes_.is_due(silent_s)) return;
  const auto ranks = [](std::span<const int> some) {
    return fmt::format("{} {}", some.size() == 1 ? "rank" : "ranks", joined(some));
  };
  const std::vector<int> silent = waits_.silent(peers, now_s);
  if (!is_over) {
    notes_.note(name, ranks(silent.empty() ? peers : silent), caller_.rank, silent_s);
    return;
  }
  if (silent.empty()) {
    fail({true,
          fmt::format("{}: nothing moved within {:g} s though {} did take part: all wait for each other, and whose "
                      "fault it is cannot be known (noticed by rank {})",
                      name, timeout_s_, ranks(peers), caller_.rank)});
  }
  fail({true, fmt::format("{}: {} did not take part within {:g} s (noticed by rank {})", name, ranks(silent),
                          timeout_s_, caller_.rank)});
}

void MessageTransport::throw_failure() const {
  if (failure_->is_timeout) throw Timeout(failure_->text);
  throw CommError(failure_->text);
}

void MessageTransport::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!abort_reason_) abort_reason_ = reason;
}

void MessageTransport::idle() {
  if (has_failed()) return;
  try {
    poll();
    notice_abort();
  } catch (const Error&) {
    // Kept in failure_: the next operation throws it.
  }
}

bool MessageTransport::has_failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

}  // namespace tangram::comm
