// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What staging needs of a device: memory, copies and an order. One implementation for CUDA; tests have one in host
// memory, so that the logic of staging is tested without a GPU.
#pragma once

#include <cstddef>

namespace tangram {

/// `rows` ranges of `width` bytes, `pitch` bytes apart.
struct Pitched {
  size_t pitch = 0;
  size_t width = 0;
  size_t rows = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  /// At least 256-byte aligned, all zeros. Throws when there is no more.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  /// Copies between host and device, in stream order. Both sides have the width and rows of `host`; `device_pitch` is
  /// the device's pitch. The host side may be used again after synchronize().
  virtual void upload(void* device, size_t device_pitch, const void* from, const Pitched& host) = 0;
  virtual void download(void* to, const Pitched& host, const void* device, size_t device_pitch) = 0;

  /// The stream that copies and calls are ordered on.
  virtual void* stream() const = 0;
  /// Waits for all that was enqueued; throws what went wrong meanwhile.
  virtual void synchronize() = 0;
};

}  // namespace tangram
