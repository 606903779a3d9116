// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which GPU a call runs on, and how calls on several streams share a prepared mask. Nothing to do in builds without
// CUDA, and for backends on host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace tangram::python {

/// Makes GPU `device` current while it lives; -1 leaves everything as it is. Throws CudaError.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = -1;
};

/// Enqueues a copy from device memory to device memory.
void copy_on_device(void* to, const void* from, int64_t num_bytes, void* stream);
/// Whether what is put on the stream becomes part of a CUDA graph.
bool is_captured(void* stream);
/// Ends when the current GPU is idle. Throws CudaError.
void synchronize_device();
/// synchronize_device() for destructors: swallows errors, and leaves a graph alone that another call captures
/// meanwhile.
void finish_device() noexcept;

/// If the stream is being captured, keeps `object` until the graph is gone.
void keep_while_graph_lives(void* stream, std::shared_ptr<const void> object);

/// A prepared mask is used by one call at a time, in stream order. A call on another stream than the last is made
/// to wait for what is on that one. Calls that are captured in a CUDA graph are ordered by the graph alone: a caller
/// that replays it beside other calls with the same mask must order them.
class StreamOrder {
 public:
  /// Before each call. The current device must be that of the streams.
  void enter(void* stream);

 private:
  std::optional<void*> last_;
};

}  // namespace tangram::python
