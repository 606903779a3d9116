// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What Q-stationary backward calls of one mask, which gather keys, read on the device. What a call computes in is the
// caller's.
#pragma once

#include "attn/gpu/views.hpp"
#include "cuda/packed_arrays.hpp"
#include "schedule/group_work_tiles.hpp"
#include "schedule/kernel_table.hpp"
#include "tangram/attn_shape.hpp"

namespace tangram::gpu {

/// Uploaded on construction: calls allocate nothing.
class DeviceSparseList {
 public:
  /// Throws CudaError.
  DeviceSparseList(const schedule::GroupList& list, const AttnShape& shape, const schedule::KernelTable& kernels);

  const SparseView& view() const { return view_; }
  /// Before each call that reads the list is put on `stream`. Throws CudaError.
  void before_call(cudaStream_t stream) const { lists_.before_call(stream); }
  size_t device_bytes() const { return lists_.device_bytes(); }

 private:
  SparseView view_;
  cuda::PackedArrays lists_;
};

}  // namespace tangram::gpu
