// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Messages of a stage over a library that matches sends and receives by order, and the packing before and unpacking
// after them. Plain host data.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/device/chunk.hpp"
#include "comm/device/pass_layout.hpp"

namespace tangram::comm {

/// Bytes for or from one peer. Those of a pair of ranks come in the same order on both.
struct Message {
  /// Tensor number that means the staging buffer.
  static constexpr int kStaging = -1;

  int peer = 0;
  int tensor = kStaging;
  int64_t offset = 0;  // bytes, in the tensor or the staging buffer
  int64_t num_bytes = 0;

  friend bool operator==(const Message&, const Message&) = default;
};

struct StageMessages {
  std::vector<Message> sends;
  std::vector<Message> recvs;
  std::vector<Chunk> pack;     // tensor `tensor` -> staging; `peer` is 0
  std::vector<Chunk> convert;  // the same from float32 to bfloat16, see launch_convert
  std::vector<Chunk> unpack;   // staging (`tensor` 0) -> tensor `peer`
  int64_t send_bytes = 0;      // of staging
  int64_t recv_bytes = 0;
  int64_t rows_sent = 0, bytes_sent = 0, rows_received = 0, bytes_received = 0;
};

/// A pair of ranks with at most this many pieces moves them as they are, one message for each piece of each tensor.
/// With more it moves one packed message.
inline constexpr size_t kMaxDirectPieces = 4;

/// The casts of one rank by stage. Receiving tensors are the receive buffers.
std::vector<StageMessages> cast_messages(Caller caller, const DevicePassSpec& spec);

/// The reduces by stage: a message for each tensor and pair. Receiving tensors are those of the return area, in which
/// rows of a (stage, source) lie together (NOTE [return area]), so that nothing is unpacked. Tensors whose
/// partial_dtype is not their reduce_dtype are converted when packed. `layout` is that of the rank; its returns need
/// not be placed.
std::vector<StageMessages> return_messages(Caller caller, const DevicePassSpec& spec, const PassLayout& layout);

}  // namespace tangram::comm
