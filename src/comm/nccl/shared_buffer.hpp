// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SharedBuffer: memory of this rank's GPU that passes over NCCL use one after the other.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>

#include "cuda/device_buffer.hpp"

namespace tangram::comm {

/// Buffer as large as the largest pass needs. Rounded up to a power of two unless it is to be exact, so that it rarely
/// grows. If it grows, earlier passes keep the smaller one. Passes may share it, because epochs use it in order:
/// transfers run on one stream of the group, which waits for the caller's (NcclPass::transfer).
class SharedBuffer {
 public:
  explicit SharedBuffer(bool is_exact) : is_exact_(is_exact) {}

  /// At least `bytes`, which are zero when it is made, and later what other passes left. Waits for the device when it
  /// grows.
  std::shared_ptr<cuda::DeviceBuffer> get(size_t bytes) {
    if (buffer_ == nullptr || buffer_->bytes() < bytes) {
      constexpr size_t kLeast = 16384;
      buffer_.reset();  // freed first where no pass uses it
      const size_t wanted = is_exact_ ? bytes : std::bit_ceil(std::max(bytes, kLeast));
      buffer_ = std::make_shared<cuda::DeviceBuffer>(cuda::DeviceBuffer::zeros(wanted));
    }
    return buffer_;
  }
  int64_t bytes() const { return buffer_ == nullptr ? 0 : static_cast<int64_t>(buffer_->bytes()); }

 private:
  const bool is_exact_;
  std::shared_ptr<cuda::DeviceBuffer> buffer_;
};

}  // namespace tangram::comm
