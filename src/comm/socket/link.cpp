// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/link.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tangram::comm {

namespace {

constexpr uint32_t kMagic = 0x74676d31;
constexpr uint64_t kMaxFrameBytes = 256 << 10;

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

Link::Link(UniqueFd fd) : fd_(std::move(fd)) { ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK); }

void Link::send(Kind kind, const void* data, int64_t num_bytes) {
  const char* from = static_cast<const char*>(data);
  for (uint64_t rest = static_cast<uint64_t>(num_bytes); rest > 0;) {
    const uint64_t frame_bytes = std::min(rest, kMaxFrameBytes);
    out_.push_back({{kMagic, kind, frame_bytes}, from, 0});
    from += frame_bytes;
    rest -= frame_bytes;
  }
}

void Link::receive(Kind kind, void* data, int64_t num_bytes) {
  if (num_bytes > 0) in_.push_back({kind, static_cast<char*>(data), static_cast<uint64_t>(num_bytes)});
}

void Link::say_waiting(std::vector<char> ranks) {
  if (has_waiting_out_ || ended_) return;
  waiting_bytes_ = std::move(ranks);
  waiting_out_ = {{kMagic, Kind::kWaiting, waiting_bytes_.size()}, waiting_bytes_.data(), 0};
  has_waiting_out_ = true;
}

void Link::give_up(const Abort& abort) {
  in_.clear();
  if (waiting_out_.num_sent == 0) has_waiting_out_ = false;
  while (out_.size() > 1 || (!out_.empty() && out_.front().num_sent == 0)) out_.pop_back();
  own_abort_ = abort;
  send(Kind::kAbort, &own_abort_, sizeof(own_abort_));
}

bool Link::step() {
  if (ended_) return false;
  const bool sent = step_out();
  return step_in() || sent;
}

bool Link::step_out() {
  bool moved = false;
  while (true) {
    const bool is_between = out_.empty() || out_.front().num_sent == 0;
    const bool is_waiting = has_waiting_out_ && (is_between || waiting_out_.num_sent > 0);
    if (!is_waiting && out_.empty()) return moved;
    OutFrame& frame = is_waiting ? waiting_out_ : out_.front();
    iovec parts[2];
    int num_parts = 0;
    if (frame.num_sent < sizeof(Header)) {
      parts[num_parts++] = {reinterpret_cast<char*>(&frame.header) + frame.num_sent, sizeof(Header) - frame.num_sent};
    }
    const uint64_t payload_sent = frame.num_sent < sizeof(Header) ? 0 : frame.num_sent - sizeof(Header);
    parts[num_parts++] = {const_cast<char*>(frame.data) + payload_sent, frame.header.num_bytes - payload_sent};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(num_parts);
    const ssize_t count = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      // A peer that is gone shows when reading, after what it sent before.
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        out_.clear();
        has_waiting_out_ = false;
      }
      return moved;
    }
    moved = moved || !is_waiting;
    frame.num_sent += static_cast<uint64_t>(count);
    if (frame.num_sent < sizeof(Header) + frame.header.num_bytes) return moved;
    if (is_waiting) {
      has_waiting_out_ = false;
      waiting_out_.num_sent = 0;
    } else {
      out_.pop_front();
    }
  }
}

bool Link::read(void* data, uint64_t num_bytes, uint64_t& num_done) {
  const ssize_t count = ::recv(fd_.get(), static_cast<char*>(data) + num_done, num_bytes - num_done, MSG_DONTWAIT);
  if (count > 0) {
    num_done += static_cast<uint64_t>(count);
    return true;
  }
  if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) ended_ = true;
  return false;
}

bool Link::step_in() {
  bool moved = false;
  while (!ended_ && !has_abort_ && violation_.empty()) {
    if (header_done_ < sizeof(Header)) {
      // The header of a message that is not wanted yet is read too: it may say that the peer gives up.
      if (!read(&header_, sizeof(Header), header_done_)) return moved;
      continue;
    }
    if (!in_payload_ && !accept_header()) return moved;
    const bool is_waiting = header_.kind == Kind::kWaiting;
    if (!read_payload()) return moved;
    moved = moved || !is_waiting;
  }
  return moved;
}

bool Link::accept_header() {
  if (header_.magic == kMagic && header_.kind == Kind::kAbort && header_.num_bytes == sizeof(Abort)) {
    in_payload_ = true;
    return true;
  }
  if (header_.magic != kMagic || header_.num_bytes == 0 || header_.num_bytes > kMaxFrameBytes) {
    violation_ = "sent what is no message of this protocol";
    return false;
  }
  if (header_.kind == Kind::kWaiting) {
    waiting_payload_.resize(header_.num_bytes);
    in_payload_ = true;
    return true;
  }
  if (in_.empty()) return false;
  if (header_.kind != in_.front().kind || header_.num_bytes > in_.front().num_bytes) {
    violation_ = "sent a message of another kind or size than expected";
    return false;
  }
  in_payload_ = true;
  return true;
}

bool Link::read_payload() {
  const bool is_abort = header_.kind == Kind::kAbort;
  const bool is_waiting = header_.kind == Kind::kWaiting;
  char* data = is_abort ? reinterpret_cast<char*>(&abort_) : is_waiting ? waiting_payload_.data() : in_.front().data;
  if (!read(data, header_.num_bytes, payload_done_)) return false;
  if (payload_done_ < header_.num_bytes) return true;
  if (is_abort) {
    abort_.text[sizeof(abort_.text) - 1] = '\0';
    has_abort_ = true;
  } else if (is_waiting) {
    waiting_in_ = waiting_payload_;
  } else {
    InMessage& message = in_.front();
    message.data += header_.num_bytes;
    message.num_bytes -= header_.num_bytes;
    if (message.num_bytes == 0) in_.pop_front();
  }
  header_done_ = 0;
  payload_done_ = 0;
  in_payload_ = false;
  return true;
}

}  // namespace tangram::comm
