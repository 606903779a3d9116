// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The memory in which one call computes: the caller's, or that which calls on a device share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "cuda/workspace.hpp"
#include "tangram/attention.hpp"

namespace tangram::gpu {

/// Lives while the call is put on its stream.
class CallWorkspace {
 public:
  /// `needed` bytes for a call on `stream`. Throws InvalidArgument, naming `function`, unless what the caller gave is
  /// enough and aligned.
  CallWorkspace(const char* function, const AttnWorkspace& given, int64_t needed, cudaStream_t stream);
  void* data() const { return data_; }

 private:
  std::optional<cuda::Workspace::Lease> lease_;
  void* data_ = nullptr;
};

}  // namespace tangram::gpu
