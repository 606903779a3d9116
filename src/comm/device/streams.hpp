// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Streams and events with an owner.
#pragma once

#include <cuda_runtime_api.h>

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

}  // namespace tangram::comm
