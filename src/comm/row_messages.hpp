// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// RowMessages: the rows of an operation as messages between processes, one for each tensor and piece, in the same order
// on both sides. Rows move as they lie in memory where they are contiguous, otherwise through packed copies.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/operation.hpp"
#include "tangram/tensor.hpp"

namespace tangram::comm {

class RowMessages {
 public:
  struct Outgoing {
    int peer = 0;
    const void* data = nullptr;
    int64_t num_bytes = 0;
  };
  struct Incoming {
    int peer = 0;
    void* data = nullptr;
    int64_t num_bytes = 0;
  };

  /// `operation` must outlive the object. Rows of the rank itself make no message.
  RowMessages(const Operation& operation, Caller caller);

  const std::vector<Outgoing>& outgoing() const { return outgoing_; }
  const std::vector<Incoming>& incoming() const { return incoming_; }

  /// When all messages have come: brings what was received beside, and the rank's own rows, into the targets.
  void finish();

 private:
  void add_incoming(bool staged);
  void add_outgoing(bool staged);

  const Operation& operation_;
  const Caller caller_;
  bool stages_in_ = false;
  std::vector<HostTensor> in_;  // when staged: in order of tensors and pieces
  std::vector<HostTensor> out_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
};

}  // namespace tangram::comm
