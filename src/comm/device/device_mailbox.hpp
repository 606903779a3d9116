// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DeviceMailbox: all_to_all_v in device memory for tables of any kind, through boxes of fixed size, so that new tables
// prepare nothing and hold no memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Bytes that one all_to_all moves. `send` holds bytes for rank 0, 1, ... one after the other, `send_bytes[r]` of them;
/// `recv` likewise. `most_bytes` is the most that goes from any rank to another one, alike on all ranks.
struct ByteMoves {
  const void* send = nullptr;
  std::span<const int64_t> send_bytes;
  void* recv = nullptr;
  std::span<const int64_t> recv_bytes;
  int64_t most_bytes = 0;
};

class DeviceMailbox {
 public:
  /// Operations of the mailbox on the device; tests replace them.
  struct Device {
    std::function<void(void* to, const void* from, int64_t num_bytes, void* stream)> copy;
    /// Ends when the device is idle. Called before a box is prepared; throws where that may not be (graph capture).
    std::function<void(void* stream)> synchronize;
  };
  /// Bytes for each peer of the box for short messages, and of the one for all others; multiples of 16.
  struct BoxBytes {
    int64_t small = 64 << 10;
    int64_t large = 2 << 20;
  };

  /// Local. `communicator` must outlive the object.
  DeviceMailbox(DeviceCommunicator& communicator, Device device, BoxBytes box_bytes)
      : communicator_(communicator), device_(std::move(device)), box_bytes_(box_bytes) {}

  /// Enqueued on `stream`, as one epoch of DevicePass for each box that the longest message fills. All ranks make the
  /// same calls in the same order. The first call of a size prepares a box: collective, synchronises. Throws
  /// InvalidArgument for counts that do not fit; whatever else goes wrong aborts the communicator.
  void all_to_all(const ByteMoves& moves, void* stream);

 private:
  struct Box {
    int64_t num_bytes = 0;
    std::shared_ptr<DevicePass> pass;
  };
  void check(const ByteMoves& moves) const;
  const Box& box_for(int64_t most_bytes, void* stream);
  void exchange(const Box& box, const ByteMoves& moves, int64_t done, void* stream);

  DeviceCommunicator& communicator_;
  Device device_;
  BoxBytes box_bytes_;
  Box small_, large_;
};

}  // namespace tangram::comm
