// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/mpi/mpi_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/mpi/beacon.hpp"
#include "comm/row_messages.hpp"
#include "comm/wire.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

// Tags of our own inside MPI_COMM_WORLD; duplicating it would be a collective that can hang.
constexpr int kTagSignature = 7301;
constexpr int kTagRows = 7302;
constexpr int kTagAbort = 7303;

constexpr int64_t kMaxMessageBytes = int64_t{1} << 28;  // counts of MPI are ints
constexpr double kLivenessInterval_s = 0.1;
constexpr double kTellPeers_s = 0.5;
constexpr int kNumEagerPolls = 200;
constexpr std::chrono::microseconds kPollInterval{60};

struct AbortMessage {
  int32_t is_timeout = 0;
  char text[508] = {};
};

}  // namespace

MpiTransport::MpiTransport(const MpiApi& api, const Beacon* beacon, double timeout_s)
    : api_(api), beacon_(beacon), timeout_s_(timeout_s) {
  api.check(api.comm_set_errhandler(api.world, api.errors_return), "MPI_Comm_set_errhandler");
  api.check(api.comm_rank(api.world, &place_.rank), "MPI_Comm_rank");
  api.check(api.comm_size(api.world, &place_.size), "MPI_Comm_size");
  received_.resize(static_cast<size_t>(place_.size), std::vector<char>(encoded_size(place_.size)));
}

void MpiTransport::execute(Operation& operation, double& started_s) {
  notice_abort();
  exchange_signatures(operation);
  started_s = steady_seconds();
  std::vector<Signature> decoded;
  std::vector<const Signature*> signatures;
  decoded.reserve(received_.size());
  for (const std::vector<char>& bytes : received_) {
    decoded.push_back(decode(bytes, place_.size));
    signatures.push_back(&decoded.back());
  }
  const std::string disagreement = find_disagreement(signatures);
  require(disagreement.empty(), "{}", disagreement);
  move_rows(operation);
}

void MpiTransport::exchange_signatures(const Operation& operation) {
  sent_ = encode(operation.signature, place_.size);
  received_[static_cast<size_t>(place_.rank)] = sent_;
  Pending pending;
  for (int peer = 0; peer < place_.size; ++peer) {
    if (peer == place_.rank) continue;
    receive(pending, peer, kTagSignature, received_[static_cast<size_t>(peer)].data(), std::ssize(sent_));
    send(pending, peer, kTagSignature, sent_.data(), std::ssize(sent_));
  }
  complete(pending, operation.name());
}

void MpiTransport::move_rows(const Operation& operation) {
  RowMessages messages(operation, place_);
  Pending pending;
  for (const RowMessages::Incoming& in : messages.incoming()) {
    receive(pending, in.peer, kTagRows, in.data, in.num_bytes);
  }
  for (const RowMessages::Outgoing& out : messages.outgoing()) {
    send(pending, out.peer, kTagRows, out.data, out.num_bytes);
  }
  complete(pending, operation.name());
  messages.finish();
}

void MpiTransport::send(Pending& pending, int peer, int tag, const void* data, int64_t num_bytes) {
  for (int64_t offset = 0; offset < num_bytes; offset += kMaxMessageBytes) {
    MPI_Request request;
    const int count = static_cast<int>(std::min(kMaxMessageBytes, num_bytes - offset));
    api_.check(api_.isend(static_cast<const char*>(data) + offset, count, api_.byte, peer, tag, api_.world, &request),
               "MPI_Isend");
    pending.requests.push_back(request);
    pending.peers.push_back(peer);
    pending.is_receive.push_back(0);
  }
}

void MpiTransport::receive(Pending& pending, int peer, int tag, void* data, int64_t num_bytes) {
  for (int64_t offset = 0; offset < num_bytes; offset += kMaxMessageBytes) {
    MPI_Request request;
    const int count = static_cast<int>(std::min(kMaxMessageBytes, num_bytes - offset));
    api_.check(api_.irecv(static_cast<char*>(data) + offset, count, api_.byte, peer, tag, api_.world, &request),
               "MPI_Irecv");
    pending.requests.push_back(request);
    pending.peers.push_back(peer);
    pending.is_receive.push_back(1);
  }
}

bool MpiTransport::remove_finished(Pending& pending) {
  int num_finished = 0;
  std::vector<int> finished(pending.requests.size());
  api_.check(api_.testsome(static_cast<int>(pending.requests.size()), pending.requests.data(), &num_finished,
                           finished.data(), MPI_STATUSES_IGNORE),
             "MPI_Testsome");
  if (num_finished <= 0) return false;
  std::vector<char> is_finished(pending.requests.size(), 0);
  for (int i = 0; i < num_finished; ++i) is_finished[static_cast<size_t>(finished[static_cast<size_t>(i)])] = 1;
  Pending rest;
  for (size_t i = 0; i < pending.requests.size(); ++i) {
    if (is_finished[i]) continue;
    rest.requests.push_back(pending.requests[i]);
    rest.peers.push_back(pending.peers[i]);
    rest.is_receive.push_back(pending.is_receive[i]);
  }
  pending = std::move(rest);
  return true;
}

void MpiTransport::complete(Pending& pending, const std::string& name) {
  double last_progress_s = steady_seconds(), last_check_s = last_progress_s;
  int num_polls = 0;
  try {
    while (!pending.requests.empty()) {
      if (remove_finished(pending)) {
        last_progress_s = steady_seconds();
        num_polls = 0;
        continue;
      }
      notice_abort();
      const double now_s = steady_seconds();
      if (now_s - last_check_s > std::min(kLivenessInterval_s, timeout_s_ / 4)) {
        last_check_s = now_s;
        check_peers(pending, name, now_s - last_progress_s);
      }
      if (++num_polls < kNumEagerPolls) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kPollInterval);
      }
    }
  } catch (...) {
    // The caller may free its memory once this throws. Sends cannot be taken back, but only read.
    for (size_t i = 0; i < pending.requests.size(); ++i) {
      if (pending.is_receive[i]) api_.cancel(&pending.requests[i]);
    }
    throw;
  }
}

void MpiTransport::check_peers(const Pending& pending, const std::string& name, double silent_s) {
  std::vector<int> peers = pending.peers;
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  for (const int peer : peers) {
    // A peer that is done and has ended may have left its last messages for us to take: those come first.
    if (beacon_ == nullptr || silent_s < 2 * kLivenessInterval_s || beacon_->sees(peer)) continue;
    fail({false,
          fmt::format("{}: rank {} has ended without taking part (noticed by rank {})", name, peer, place_.rank)});
  }
  if (silent_s < timeout_s_) return;
  std::string ranks = peers.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < peers.size(); ++i) ranks += fmt::format("{}{}", i == 0 ? "" : ", ", peers[i]);
  fail({true, fmt::format("{}: {} did not take part within {:g} s (noticed by rank {})", name, ranks, timeout_s_,
                          place_.rank)});
}

void MpiTransport::notice_abort() {
  std::optional<std::string> reason;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_failure();
    reason = abort_reason_;
  }
  if (reason) fail({false, fmt::format("rank {} gave up: {}", place_.rank, *reason)});
  int has_message = 0;
  MPI_Status status;
  api_.check(api_.iprobe(MPI_ANY_SOURCE, kTagAbort, api_.world, &has_message, &status), "MPI_Iprobe");
  if (!has_message) return;
  AbortMessage message;
  api_.check(api_.recv(&message, sizeof(message), api_.byte, status.MPI_SOURCE, kTagAbort, api_.world, &status),
             "MPI_Recv");
  message.text[sizeof(message.text) - 1] = '\0';
  const std::lock_guard lock(mutex_);
  failure_ = Failure{message.is_timeout != 0, message.text};
  throw_failure();
}

void MpiTransport::fail(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
  }
  tell_peers(failure);
  throw_failure();
}

void MpiTransport::tell_peers(const Failure& failure) {
  AbortMessage message;
  message.is_timeout = failure.is_timeout ? 1 : 0;
  std::memcpy(message.text, failure.text.data(), std::min(failure.text.size(), sizeof(message.text) - 1));
  abort_message_.assign(reinterpret_cast<const char*>(&message), reinterpret_cast<const char*>(&message + 1));
  Pending pending;
  for (int peer = 0; peer < place_.size; ++peer) {
    if (peer != place_.rank) send(pending, peer, kTagAbort, abort_message_.data(), std::ssize(abort_message_));
  }
  // A peer that is lost will not take it; the others do at once.
  const double end_s = steady_seconds() + kTellPeers_s;
  while (!pending.requests.empty() && steady_seconds() < end_s) {
    if (!remove_finished(pending)) std::this_thread::sleep_for(kPollInterval);
  }
}

void MpiTransport::throw_failure() const {
  if (failure_->is_timeout) throw Timeout(failure_->text);
  throw CommError(failure_->text);
}

void MpiTransport::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!abort_reason_) abort_reason_ = reason;
}

void MpiTransport::idle() {
  if (has_failed()) return;
  try {
    notice_abort();
  } catch (const Error&) {
    // Kept in failure_: the next operation throws it.
  }
}

bool MpiTransport::has_failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

}  // namespace tangram::comm
