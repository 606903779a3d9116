// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Link: the connection to one peer. Messages are cut into frames, so that a rank that gives up in the middle of one can
// still say so.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tangram::comm {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }
  /// The caller closes it.
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class Link {
 public:
  enum class Kind : uint32_t { kSignature = 1, kRows = 2, kAbort = 3, kWaiting = 4 };
  /// Why a peer gave up.
  struct Abort {
    int32_t is_timeout = 0;
    char text[508] = {};
  };

  /// Makes the connected socket non-blocking.
  explicit Link(UniqueFd fd);

  /// The memory must stay until the message is done. Messages of a direction are done in order.
  void send(Kind kind, const void* data, int64_t num_bytes);
  void receive(Kind kind, void* data, int64_t num_bytes);
  /// Tells the peer for whom this rank waits, between frames of messages; nothing while what was said last has not
  /// begun to go out.
  void say_waiting(std::vector<char> ranks);
  /// Latest message of this kind from the peer since the last call.
  std::optional<std::vector<char>> take_waiting() { return std::exchange(waiting_in_, std::nullopt); }
  /// Drops all messages but the rest of a frame that is partly out, and sends `abort` after it. The memory of dropped
  /// messages is not touched any more; that of the rest must stay while `step` is called.
  void give_up(const Abort& abort);

  /// Moves what can be moved now; true when anything of a message was. Who waits for whom is none.
  bool step();

  int fd() const { return fd_.get(); }
  bool wants_send() const { return (!out_.empty() || has_waiting_out_) && !ended_; }
  bool wants_receive() const { return !in_.empty(); }
  bool idle() const { return out_.empty() && in_.empty(); }
  /// The peer has closed the connection, or died, and all that it had sent was read as far as it was wanted.
  bool ended() const { return ended_; }
  /// Message that the peer sent when it gave up, or null.
  const Abort* abort() const { return has_abort_ ? &abort_ : nullptr; }
  /// Text about received data that violates the protocol; empty otherwise.
  const std::string& violation() const { return violation_; }

 private:
  struct Header {
    uint32_t magic = 0;
    Kind kind = Kind::kSignature;
    uint64_t num_bytes = 0;
  };
  struct OutFrame {
    Header header;
    const char* data = nullptr;
    uint64_t num_sent = 0;  // header included
  };
  struct InMessage {
    Kind kind = Kind::kSignature;
    char* data = nullptr;
    uint64_t num_bytes = 0;
  };

  bool step_out();
  bool step_in();
  bool read(void* data, uint64_t num_bytes, uint64_t& num_done);
  bool accept_header();
  bool read_payload();

  UniqueFd fd_;
  std::deque<OutFrame> out_;
  std::deque<InMessage> in_;
  std::vector<char> waiting_bytes_;
  OutFrame waiting_out_;  // of waiting_bytes_
  bool has_waiting_out_ = false;
  std::optional<std::vector<char>> waiting_in_;
  std::vector<char> waiting_payload_;  // that is being read
  Header header_;
  uint64_t header_done_ = 0;
  uint64_t payload_done_ = 0;
  bool in_payload_ = false;
  bool ended_ = false;
  bool has_abort_ = false;
  Abort abort_;
  Abort own_abort_;
  std::string violation_;
};

}  // namespace tangram::comm
