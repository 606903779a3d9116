// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What KV-stationary backward calls of one mask read on the device: its work list. What a call computes in is the
// caller's.
#pragma once

#include <cstdint>

#include "attn/gpu/backward_scratch.hpp"
#include "attn/gpu/views.hpp"
#include "cuda/packed_arrays.hpp"
#include "schedule/work_list.hpp"
#include "tangram/attention.hpp"

namespace tangram::gpu {

/// Its copy is enqueued on construction, for deterministic calls too: calls allocate nothing.
class DeviceWorkList {
 public:
  /// Throws CudaError.
  DeviceWorkList(const schedule::WorkList& work, const AttnShape& shape, const schedule::KernelTable& kernels);

  /// `workspace`: workspace_bytes(), of any content, for one call at a time.
  BackwardView view(bool deterministic, void* workspace) const;
  size_t workspace_bytes() const { return workspace_bytes_; }
  /// Before each call that reads the list is put on `stream`. Throws CudaError.
  void before_call(cudaStream_t stream) const { lists_.before_call(stream); }
  size_t device_bytes() const { return lists_.device_bytes(); }

 private:
  BackwardSizes sizes_;                   // NOTE [capacity]
  BackwardView default_, deterministic_;  // without scratch
  cuda::PackedArrays lists_;
  size_t workspace_bytes_ = 0;
};

}  // namespace tangram::gpu
