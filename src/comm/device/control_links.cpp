// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/control_links.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "comm/nodes/listener.hpp"
#include "comm/progress_communicator.hpp"
#include "comm/socket/connect.hpp"
#include "core/require.hpp"

namespace tangram::comm {

using cuda::WaitKind;

namespace {

constexpr double kLook_s = 0.005;  // how late a change is seen here
constexpr double kHeartbeat_s = 0.1;
constexpr double kHeardLately_s = 1;       // who was not heard for so long is told less often
constexpr double kSilentShare = 1.0 / 32;  // of the timeout
constexpr double kUserTimeoutShare = 0.25;
constexpr size_t kMaxUnsent = 1 << 16;

/// After which the system gives up a connection on which nothing is acknowledged.
void set_user_timeout(int fd, double timeout_s) {
  const auto ms = static_cast<unsigned int>(std::max(1.0, timeout_s * kUserTimeoutShare * 1e3));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

}  // namespace

/// One size for all, so that a stream of them needs no headers.
struct ControlLinks::Message {
  enum Kind : uint32_t { kRow = 1, kFailure = 2, kFingerprint = 3, kStatement = 4 };
  static constexpr uint32_t kMagic = 0x74676e6c;

  uint32_t magic = kMagic;
  Kind kind = kRow;
  RowState row;
  FailureState failure;
  int64_t blamed = -1;  // kFailure: rank whose reason to give up is `text`
  char text[200] = {};  // kStatement: the refusal
  CallFingerprint fingerprint;
  uint64_t options = 0;  // kStatement
};
static_assert(sizeof(AgreementRecord::refusal) == 200);

ControlLinks::ControlLinks(HostControlBlock& control_block, Communicator& control, double timeout_s)
    : control_block_(control_block), rank_(control.rank()), timeout_s_(timeout_s) {
  TANGRAM_ASSERT(control_block.is_linked());
  const SubgroupPlace place{0, control.rank(), control.size()};
  SocketGroupConfig config = meeting_by_tcp(control, place, host_address(control), timeout_s);
  config.setup_timeout_s = timeout_s;
  const double now_s = steady_seconds();
  for (UniqueFd& fd : connect_ranks(config)) {
    Peer& peer = peers_.emplace_back();
    peer.sent_s = peer.heard_s = now_s;
    if (!fd) continue;
    ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
    set_user_timeout(fd.get(), timeout_s);
    closed_in_children_.add(fd.get());
    peer.fd = std::move(fd);
  }
  for (int peer = 0; peer < control_block.size(); ++peer) control_block_.mark_alive(peer);
  control.barrier("control block: linked");
  thread_ = std::thread([this] { run(); });
}

ControlLinks::~ControlLinks() {
  HostControlBlock::store(control_block_.row(rank_).has_left, 1);
  leaving_ = true;
  thread_.join();
}

void ControlLinks::run() {
  std::optional<double> end_s;
  while (true) {
    const double now_s = steady_seconds();
    if (leaving_ && !end_s) end_s = now_s + kLeave_s;
    bool is_connected = false;
    for (int rank = 0; rank < control_block_.size(); ++rank) {
      if (!peers_[static_cast<size_t>(rank)].fd) continue;
      prepare(rank, now_s);
      send(rank);
      is_connected = is_connected || peers_[static_cast<size_t>(rank)].fd;
    }
    note_statements_sent();
    if (end_s && (!is_connected || now_s > *end_s)) return;
    wait(kLook_s);
  }
}

void ControlLinks::note_statements_sent() {
  uint64_t sent = control_block_.num_statements(rank_);
  for (const Peer& peer : peers_) {
    if (peer.fd) sent = std::min(sent, peer.num_statements);
  }
  control_block_.mark_sent(sent);
}

ControlLinks::RowState ControlLinks::own_row() const {
  const cuda::ControlBlockRow& row = control_block_.row(rank_);
  const auto load = [](const uint64_t& word) { return HostControlBlock::load(word); };
  return {load(row.operation), load(row.progress), load(row.opened), load(row.stopped), load(row.has_left)};
}

void ControlLinks::prepare(int rank, double now_s) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.has_said_all || peer.out.size() > kMaxUnsent) return;
  const auto put = [&](const Message& message) {
    const char* begin = reinterpret_cast<const char*>(&message);
    peer.out.insert(peer.out.end(), begin, begin + sizeof(message));
    peer.sent_s = now_s;
  };
  // First the row: its last change, that this rank leaves, is what everything else must come before.
  const RowState row = own_row();
  Message message;
  while (std::optional<CallFingerprint> next = control_block_.next_fingerprint(rank_, peer.num_fingerprints)) {
    message.kind = Message::kFingerprint;
    message.fingerprint = *next;
    put(message);
  }
  while (const std::optional<AgreementRecord> next = control_block_.statement(rank_, peer.num_statements)) {
    message.kind = Message::kStatement;
    message.fingerprint = next->fingerprint;
    message.options = next->options;
    std::memcpy(message.text, next->refusal, sizeof(message.text));
    put(message);
    ++peer.num_statements;
  }
  const cuda::ControlBlockRow& told = control_block_.row(rank);
  const FailureState failure{HostControlBlock::load(told.report), HostControlBlock::load(told.host_abort)};
  if (failure != peer.sent_failure) {
    message.kind = Message::kFailure;
    message.failure = peer.sent_failure = failure;
    message.blamed = cuda::unpack(failure.report != 0 ? failure.report : failure.host_abort).peer;
    std::memcpy(message.text, control_block_.row(static_cast<int>(message.blamed)).text, sizeof(message.text));
    put(message);
  }
  const double pause_s =
      now_s - peer.heard_s < kHeardLately_s ? kHeartbeat_s : std::max(kHeartbeat_s, kSilentShare * timeout_s_);
  if (row != peer.sent_row || now_s - peer.sent_s >= pause_s) {
    message.kind = Message::kRow;
    message.row = peer.sent_row = row;
    put(message);
  }
  peer.has_said_all = row.has_left != 0;
}

void ControlLinks::send(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  while (!peer.out.empty()) {
    const ssize_t count = ::send(peer.fd.get(), peer.out.data(), peer.out.size(), MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      const WaitKind kind = errno == EPIPE || errno == ECONNRESET ? WaitKind::kEnded : WaitKind::kUnreachable;
      receive(rank);  // that it leaves may still be unread
      if (peer.fd) lose(rank, kind);
      return;
    }
    peer.out.erase(peer.out.begin(), peer.out.begin() + count);
  }
  if (peer.has_said_all) ::shutdown(peer.fd.get(), SHUT_WR);
}

void ControlLinks::wait(double seconds) {
  std::vector<pollfd> polled;
  std::vector<int> ranks;
  for (int rank = 0; rank < control_block_.size(); ++rank) {
    const UniqueFd& fd = peers_[static_cast<size_t>(rank)].fd;
    if (!fd) continue;
    polled.push_back({fd.get(), POLLIN, 0});
    ranks.push_back(rank);
  }
  const timespec pause{0, static_cast<long>(seconds * 1e9)};
  if (::ppoll(polled.data(), polled.size(), &pause, nullptr) <= 0) return;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (polled[i].revents != 0) receive(ranks[i]);
  }
}

void ControlLinks::receive(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  char data[4096];
  while (true) {
    const ssize_t count = ::recv(peer.fd.get(), data, sizeof(data), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (count <= 0) {
      lose(rank, count == 0 || errno == ECONNRESET ? WaitKind::kEnded : WaitKind::kUnreachable);
      return;
    }
    peer.in.insert(peer.in.end(), data, data + count);
    peer.heard_s = steady_seconds();
    control_block_.mark_alive(rank);
    size_t at = 0;
    for (; peer.in.size() - at >= sizeof(Message); at += sizeof(Message)) {
      Message message;
      std::memcpy(&message, peer.in.data() + at, sizeof(message));
      if (take(rank, message)) continue;
      lose(rank, WaitKind::kEnded);
      return;
    }
    peer.in.erase(peer.in.begin(), peer.in.begin() + static_cast<ptrdiff_t>(at));
  }
}

bool ControlLinks::take(int rank, const Message& message) {
  if (message.magic != Message::kMagic) return false;
  cuda::ControlBlockRow& row = control_block_.row(rank);
  const auto store = [](uint64_t& word, uint64_t value) { HostControlBlock::store(word, value); };
  switch (message.kind) {
    case Message::kRow:
      store(row.progress, message.row.progress);
      store(row.operation, message.row.operation);
      store(row.opened, message.row.opened);
      store(row.stopped, message.row.stopped);
      store(row.has_left, message.row.has_left);
      return true;
    case Message::kFailure: {
      if (message.blamed < 0 || message.blamed >= control_block_.size()) return false;
      auto& text = control_block_.row(static_cast<int>(message.blamed)).text;
      if (message.blamed != rank_ && text[0] == '\0') std::memcpy(text, message.text, sizeof(text) - 1);
      cuda::ControlBlockRow& own = control_block_.row(rank_);
      if (message.failure.report != 0) HostControlBlock::store_first(own.report, message.failure.report);
      if (message.failure.host_abort != 0) HostControlBlock::store_first(own.host_abort, message.failure.host_abort);
      return true;
    }
    case Message::kStatement: {
      AgreementRecord statement;
      statement.fingerprint = message.fingerprint;
      statement.options = message.options;
      std::memcpy(statement.refusal, message.text, sizeof(statement.refusal) - 1);
      control_block_.make_agreement_record(rank, statement);
      return true;
    }
    case Message::kFingerprint: control_block_.show_fingerprint(rank, message.fingerprint); return true;
  }
  return false;
}

void ControlLinks::lose(int rank, WaitKind kind) {
  peers_[static_cast<size_t>(rank)].fd = UniqueFd();
  if (leaving_ || HostControlBlock::load(control_block_.row(rank).has_left) != 0) return;
  HostControlBlock::store_first(control_block_.row(rank_).host_abort, cuda::pack({kind, rank_, rank, 0, 0, 0}));
}

}  // namespace tangram::comm
