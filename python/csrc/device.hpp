// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which GPU a call runs on, and how calls on several streams share a prepared mask. Nothing to do in builds without
// CUDA, and for backends on host memory.
#pragma once

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

/// A prepared mask has one workspace, which calls use in stream order. A call on another stream than the last is made
/// to wait for what is on that one. Calls that are captured in a CUDA graph are ordered by the graph alone: whoever
/// replays it beside other calls with the same mask must order them.
class StreamOrder {
 public:
  /// Before each call. The current device must be that of the streams.
  void enter(void* stream);

 private:
  std::optional<void*> last_;
};

}  // namespace tangram::python
