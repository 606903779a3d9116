// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/socket_transport.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "comm/socket/address.hpp"
#include "core/require.hpp"

namespace tangram::comm {

namespace {

/// How long a wait sleeps at most before it looks whether this rank itself was aborted.
constexpr double kLookInterval_s = 0.02;

Link::Kind link_kind(MessageKind kind) {
  return kind == MessageKind::kRows ? Link::Kind::kRows : Link::Kind::kSignature;
}

/// Own address, as the first peer sees it.
std::string own_host(const std::vector<UniqueFd>& connections) {
  const auto first = std::ranges::find_if(connections, [](const UniqueFd& fd) { return static_cast<bool>(fd); });
  return first == connections.end() ? std::string() : host_of(own_address(first->get()));
}

}  // namespace

SocketTransport::SocketTransport(Caller caller, std::vector<UniqueFd> connections, double timeout_s)
    : MessageTransport(caller, timeout_s), host_address_(own_host(connections)) {
  TANGRAM_ASSERT(std::ssize(connections) == caller.size);
  for (UniqueFd& fd : connections) {
    if (fd) {
      closed_in_children_.add(fd.get());
      links_.emplace_back(std::in_place, std::move(fd));
    } else {
      links_.emplace_back();
    }
  }
}

void SocketTransport::send(int peer, MessageKind kind, const void* data, int64_t num_bytes) {
  links_[static_cast<size_t>(peer)]->send(link_kind(kind), data, num_bytes);
}

void SocketTransport::receive(int peer, MessageKind kind, void* data, int64_t num_bytes) {
  links_[static_cast<size_t>(peer)]->receive(link_kind(kind), data, num_bytes);
}

void SocketTransport::complete(const std::string& name) {
  const double begin_s = steady_seconds();
  double last_progress_s = begin_s, heard_s = begin_s;
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
    if (now_s - heard_s > kLookInterval_s) {
      hear();
      heard_s = now_s;
    }
    notice_abort();
    check_links(name, begin_s, now_s - last_progress_s);
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

// What comes on links where nothing is awaited, too.
void SocketTransport::hear() {
  for (int peer = 0; peer < caller_.size; ++peer) {
    std::optional<Link>& link = links_[static_cast<size_t>(peer)];
    if (!link) continue;
    if (link->idle()) link->step();
    if (const auto waiting = link->take_waiting()) waits_.hear(peer, *waiting, steady_seconds());
  }
}

void SocketTransport::tell_waiting(const std::vector<char>& bytes) {
  for (std::optional<Link>& link : links_) {
    if (!link) continue;
    link->say_waiting(bytes);
    if (link->idle()) link->step();
  }
}

void SocketTransport::check_links(const std::string& name, double begin_s, double silent_s) {
  std::vector<int> waited_for;
  for (int peer = 0; peer < caller_.size; ++peer) {
    const std::optional<Link>& link = links_[static_cast<size_t>(peer)];
    if (!link || link->idle()) continue;
    if (link->ended()) fail_ended(name, peer);
    if (!link->violation().empty()) {
      fail({false, fmt::format("{}: rank {} {} (noticed by rank {})", name, peer, link->violation(), caller_.rank)});
    }
    waited_for.push_back(peer);
  }
  check_silence(name, waited_for, begin_s, silent_s);
}

std::optional<SocketTransport::Failure> SocketTransport::failure_of_peer() {
  for (const std::optional<Link>& link : links_) {
    if (link && link->abort() != nullptr) return Failure{link->abort()->is_timeout != 0, link->abort()->text};
  }
  return std::nullopt;
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

void SocketTransport::poll() { hear(); }

}  // namespace tangram::comm
