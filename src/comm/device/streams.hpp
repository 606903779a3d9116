// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Streams and events with an owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/device_buffer.hpp"

namespace tangram::comm {

/// A stream of the highest priority that does not wait for the legacy stream.
class OwnedStream {
 public:
  OwnedStream();
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event without a time.
class OwnedEvent {
 public:
  OwnedEvent();
  ~OwnedEvent();
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  cudaEvent_t get() const { return event_; }
  /// Later work on `to` waits for what is on `from` now.
  void order(cudaStream_t from, cudaStream_t to) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// A word of device memory that a stream raises, without a kernel, when it has reached a point. Kernels on other
/// streams can wait for it. Not in graphs, which would raise it to the same value again.
class StreamWord {
 public:
  StreamWord();
  const uint64_t* get() const { return word_.as<uint64_t>(); }
  /// Value that the word reaches once all work now on `stream` has ended.
  uint64_t raise(cudaStream_t stream);

 private:
  cuda::DeviceBuffer word_;
  uint64_t value_ = 0;
};

}  // namespace tangram::comm
