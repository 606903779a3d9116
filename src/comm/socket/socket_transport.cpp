// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/socket_transport.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "comm/row_messages.hpp"
#include "comm/wire.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// How long a wait sleeps at most before it looks whether this rank itself was aborted.
constexpr double kLookInterval_s = 0.02;
constexpr double kTellPeers_s = 0.5;

}  // namespace

SocketTransport::SocketTransport(Place place, std::vector<UniqueFd> connections, double timeout_s)
    : place_(place), timeout_s_(timeout_s) {
  TANGRAM_ASSERT(std::ssize(connections) == place.size);
  for (UniqueFd& fd : connections) {
    if (fd) {
      links_.emplace_back(std::in_place, std::move(fd));
    } else {
      links_.emplace_back();
    }
  }
  received_.resize(static_cast<size_t>(place.size), std::vector<char>(encoded_size(place.size)));
}

void SocketTransport::execute(Operation& operation, double& started_s) {
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

void SocketTransport::exchange_signatures(const Operation& operation) {
  sent_ = encode(operation.signature, place_.size);
  received_[static_cast<size_t>(place_.rank)] = sent_;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    if (!links_[peer]) continue;
    links_[peer]->receive(Link::Kind::kSignature, received_[peer].data(), std::ssize(sent_));
    links_[peer]->send(Link::Kind::kSignature, sent_.data(), std::ssize(sent_));
  }
  complete(operation.name());
}

void SocketTransport::move_rows(const Operation& operation) {
  RowMessages messages(operation, place_);
  for (const RowMessages::Incoming& in : messages.incoming()) {
    links_[static_cast<size_t>(in.peer)]->receive(Link::Kind::kRows, in.data, in.num_bytes);
  }
  for (const RowMessages::Outgoing& out : messages.outgoing()) {
    links_[static_cast<size_t>(out.peer)]->send(Link::Kind::kRows, out.data, out.num_bytes);
  }
  complete(operation.name());
  messages.finish();
}

void SocketTransport::complete(const std::string& name) {
  double last_progress_s = steady_seconds();
  while (true) {
    bool moved = false, busy = false;
    for (std::optional<Link>& link : links_) {
      if (!link || link->idle()) continue;
      moved = link->step() || moved;
      busy = busy || !link->idle();
    }
    if (!busy) return;
    const double now_s = steady_seconds();
    if (moved) last_progress_s = now_s;
    notice_abort();
    check_links(name, now_s - last_progress_s);
    if (!moved) wait_ready(kLookInterval_s);
  }
}

void SocketTransport::wait_ready(double seconds) {
  std::vector<pollfd> polled;
  for (const std::optional<Link>& link : links_) {
    if (!link || link->idle() || link->ended()) continue;
    const int events = (link->wants_receive() ? POLLIN : 0) | (link->wants_send() ? POLLOUT : 0);
    polled.push_back({link->fd(), static_cast<short>(events), 0});
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(seconds * 1e3));
}

void SocketTransport::check_links(const std::string& name, double silent_s) {
  std::string waited_for;
  int num_waited_for = 0;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    const std::optional<Link>& link = links_[peer];
    if (!link || link->idle()) continue;
    if (link->ended()) {
      fail({false,
            fmt::format("{}: rank {} has ended without taking part (noticed by rank {})", name, peer, place_.rank)});
    }
    if (!link->violation().empty()) {
      fail({false, fmt::format("{}: rank {} {} (noticed by rank {})", name, peer, link->violation(), place_.rank)});
    }
    waited_for += fmt::format("{}{}", num_waited_for++ == 0 ? "" : ", ", peer);
  }
  if (silent_s < timeout_s_) return;
  fail({true, fmt::format("{}: {} {} did not take part within {:g} s (noticed by rank {})", name,
                          num_waited_for == 1 ? "rank" : "ranks", waited_for, timeout_s_, place_.rank)});
}

void SocketTransport::notice_abort() {
  std::optional<std::string> reason;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_failure();
    reason = abort_reason_;
  }
  if (reason) fail({false, fmt::format("rank {} gave up: {}", place_.rank, *reason)});
  for (const std::optional<Link>& link : links_) {
    if (!link || link->abort() == nullptr) continue;
    const std::lock_guard lock(mutex_);
    failure_ = Failure{link->abort()->is_timeout != 0, link->abort()->text};
    throw_failure();
  }
}

void SocketTransport::fail(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
  }
  tell_peers(failure);
  throw_failure();
}

void SocketTransport::tell_peers(const Failure& failure) {
  Link::Abort abort;
  abort.is_timeout = failure.is_timeout ? 1 : 0;
  std::memcpy(abort.text, failure.text.data(), std::min(failure.text.size(), sizeof(abort.text) - 1));
  for (std::optional<Link>& link : links_) {
    if (link) link->give_up(abort);
  }
  // A peer that is lost will not take it; the others do at once.
  const double end_s = steady_seconds() + kTellPeers_s;
  while (steady_seconds() < end_s) {
    bool sending = false;
    for (std::optional<Link>& link : links_) {
      if (!link) continue;
      link->step();
      sending = sending || link->wants_send();
    }
    if (!sending) return;
    wait_ready(kLookInterval_s);
  }
}

void SocketTransport::throw_failure() const {
  if (failure_->is_timeout) throw Timeout(failure_->text);
  throw CommError(failure_->text);
}

void SocketTransport::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!abort_reason_) abort_reason_ = reason;
}

void SocketTransport::idle() {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
  }
  try {
    for (std::optional<Link>& link : links_) {
      if (link) link->step();
    }
    notice_abort();
  } catch (const Error&) {
    // Kept in failure_: the next operation throws it.
  }
}

}  // namespace tangram::comm
