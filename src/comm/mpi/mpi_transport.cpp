// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/mpi/mpi_transport.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/mpi/beacon.hpp"

namespace tangram::comm {

namespace {

// Tags of our own inside MPI_COMM_WORLD; duplicating it would be a collective that can hang.
constexpr int kTagSignature = 7301;
constexpr int kTagRows = 7302;
constexpr int kTagAbort = 7303;
constexpr int kTagWaiting = 7304;

constexpr int64_t kMaxMessageBytes = int64_t{1} << 28;  // counts of MPI are ints
constexpr double kLivenessInterval_s = 0.1;
constexpr int kNumEagerPolls = 200;
constexpr std::chrono::microseconds kPollInterval{60};

struct AbortMessage {
  int32_t is_timeout = 0;
  char text[508] = {};
};

int tag_of(MessageKind kind) { return kind == MessageKind::kRows ? kTagRows : kTagSignature; }

Caller caller_in(const MpiApi& api) {
  Caller caller;
  api.check(api.comm_set_errhandler(api.world, api.errors_return), "MPI_Comm_set_errhandler");
  api.check(api.comm_rank(api.world, &caller.rank), "MPI_Comm_rank");
  api.check(api.comm_size(api.world, &caller.size), "MPI_Comm_size");
  return caller;
}

}  // namespace

MpiTransport::MpiTransport(const MpiApi& api, Beacon* beacon, double timeout_s)
    : MessageTransport(caller_in(api), timeout_s),
      api_(api),
      beacon_(beacon),
      waiting_messages_(static_cast<size_t>(caller_.size)) {}

void MpiTransport::send(int peer, MessageKind kind, const void* data, int64_t num_bytes) {
  send(pending_, peer, tag_of(kind), data, num_bytes);
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

void MpiTransport::receive(int peer, MessageKind kind, void* data, int64_t num_bytes) {
  for (int64_t offset = 0; offset < num_bytes; offset += kMaxMessageBytes) {
    MPI_Request request;
    const int count = static_cast<int>(std::min(kMaxMessageBytes, num_bytes - offset));
    api_.check(
        api_.irecv(static_cast<char*>(data) + offset, count, api_.byte, peer, tag_of(kind), api_.world, &request),
        "MPI_Irecv");
    pending_.requests.push_back(request);
    pending_.peers.push_back(peer);
    pending_.is_receive.push_back(1);
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

void MpiTransport::complete(const std::string& name) {
  try {
    poll_until_done(name);
  } catch (...) {
    // The caller may free its memory once this throws. Sends cannot be taken back, but only read.
    for (size_t i = 0; i < pending_.requests.size(); ++i) {
      if (pending_.is_receive[i]) api_.cancel(&pending_.requests[i]);
    }
    pending_ = {};
    throw;
  }
}

void MpiTransport::poll_until_done(const std::string& name) {
  const double begin_s = steady_seconds();
  double last_progress_s = begin_s, last_check_s = begin_s;
  int num_polls = 0;
  while (!pending_.requests.empty()) {
    if (remove_finished(pending_)) {
      last_progress_s = steady_seconds();
      num_polls = 0;
      continue;
    }
    notice_abort();
    const double now_s = steady_seconds();
    if (now_s - last_check_s > std::min(kLivenessInterval_s, timeout_s_ / 4)) {
      last_check_s = now_s;
      check_peers(name, begin_s, now_s - last_progress_s);
    }
    if (++num_polls < kNumEagerPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

// Every message that has come, also from ranks that are not awaited here: they would pile up inside MPI.
void MpiTransport::hear() {
  if (beacon_ != nullptr) beacon_->listen();  // peers that are still in MPI_Init ask
  while (true) {
    int has_message = 0;
    MPI_Status status;
    api_.check(api_.iprobe(MPI_ANY_SOURCE, kTagWaiting, api_.world, &has_message, &status), "MPI_Iprobe");
    if (!has_message) return;
    std::vector<char> bytes = waits_.encode({});
    const int peer = status.MPI_SOURCE;
    api_.check(
        api_.recv(bytes.data(), static_cast<int>(bytes.size()), api_.byte, peer, kTagWaiting, api_.world, &status),
        "MPI_Recv");
    waits_.hear(peer, bytes, steady_seconds());
  }
}

void MpiTransport::tell_waiting(const std::vector<char>& bytes) {
  if (!waiting_.requests.empty()) remove_finished(waiting_);
  for (int peer = 0; peer < caller_.size; ++peer) {
    const bool is_told = std::find(waiting_.peers.begin(), waiting_.peers.end(), peer) != waiting_.peers.end();
    if (peer == caller_.rank || is_told) continue;
    std::vector<char>& message = waiting_messages_[static_cast<size_t>(peer)];
    message = bytes;
    send(waiting_, peer, kTagWaiting, message.data(), std::ssize(message));
  }
}

void MpiTransport::poll() {
  hear();
  if (!waiting_.requests.empty()) remove_finished(waiting_);
}

void MpiTransport::check_peers(const std::string& name, double begin_s, double silent_s) {
  hear();
  std::vector<int> peers = pending_.peers;
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  for (const int peer : peers) {
    // A peer that is done and has ended may have left its last messages for us to take: those come first.
    if (beacon_ == nullptr || silent_s < 2 * kLivenessInterval_s || beacon_->sees(peer)) continue;
    fail_ended(name, peer);
  }
  check_silence(name, peers, begin_s, silent_s);
}

std::optional<MpiTransport::Failure> MpiTransport::failure_of_peer() {
  int has_message = 0;
  MPI_Status status;
  api_.check(api_.iprobe(MPI_ANY_SOURCE, kTagAbort, api_.world, &has_message, &status), "MPI_Iprobe");
  if (!has_message) return std::nullopt;
  AbortMessage message;
  api_.check(api_.recv(&message, sizeof(message), api_.byte, status.MPI_SOURCE, kTagAbort, api_.world, &status),
             "MPI_Recv");
  message.text[sizeof(message.text) - 1] = '\0';
  return Failure{message.is_timeout != 0, message.text};
}

void MpiTransport::tell_peers(const Failure& failure) {
  AbortMessage message;
  message.is_timeout = failure.is_timeout ? 1 : 0;
  std::memcpy(message.text, failure.text.data(), std::min(failure.text.size(), sizeof(message.text) - 1));
  abort_message_.assign(reinterpret_cast<const char*>(&message), reinterpret_cast<const char*>(&message + 1));
  Pending pending;
  for (int peer = 0; peer < caller_.size; ++peer) {
    if (peer != caller_.rank) send(pending, peer, kTagAbort, abort_message_.data(), std::ssize(abort_message_));
  }
  // A peer that is lost will not take it; the others do at once.
  const double end_s = steady_seconds() + kTellPeers_s;
  while (!pending.requests.empty() && steady_seconds() < end_s) {
    if (!remove_finished(pending)) std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace tangram::comm
