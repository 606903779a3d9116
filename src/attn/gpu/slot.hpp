// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A slot as calls of GPU kernels see it: exact_slot.hpp, list_buffer.hpp and block_buffer.hpp implement it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "attn/gpu/key_sources.hpp"
#include "attn/gpu/views.hpp"
#include "schedule/kernel_table.hpp"
#include "tangram/attention.hpp"

namespace tangram::gpu {

/// Calls ask for what they read, and put it on their stream: each function is of a part that is installed.
class GpuSlot : public MaskSlot {
 public:
  GpuSlot(const AttnShape& shape, const schedule::KernelTable& kernels) : shape_(shape), kernels_(kernels) {}
  const AttnShape& shape() const { return shape_; }
  const schedule::KernelTable& kernels() const { return kernels_; }

  /// Like AttnBackend::install; throws InvalidArgument for metadata of another kind of slot.
  virtual void install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) = 0;
  /// Like AttnBackend::install_device.
  virtual void install_device(const MaskData& data, cudaStream_t stream);

  /// Throw InvalidArgument, naming `function`, where what such a call reads is not installed.
  virtual void check_forward(const char* function) const = 0;
  virtual void check_backward(const char* function, const AttnBackwardArgs& args) const = 0;
  /// Before a call is put on `stream`: orders it behind the upload of what it reads, or lets a captured graph keep
  /// that.
  virtual void before_forward(cudaStream_t stream) const = 0;
  virtual void before_backward(const AttnBackwardArgs& args, cudaStream_t stream) const = 0;

  virtual ForwardView forward_view() const = 0;
  virtual const DeviceKeySources& forward_sources() const;

  /// Whether Q-stationary kernels take the call.
  virtual bool is_sparse(const AttnBackwardArgs& args) const = 0;
  virtual SparseView sparse_view() const { return {}; }
  /// View for the KV-stationary kernels: lists, and pointers into a workspace of any content.
  virtual BackwardView backward_view(bool deterministic, void* workspace) const = 0;
  virtual const DeviceKeySources& backward_sources(bool deterministic) const;

  /// Workspace bytes of KV-stationary calls; without argument: of all backward calls that can be made now.
  virtual size_t backward_workspace_bytes(bool deterministic) const = 0;
  virtual size_t backward_workspace_bytes() const = 0;

 private:
  AttnShape shape_;
  schedule::KernelTable kernels_;
};

/// Throws InvalidArgument for a slot of a backend of hosts.
const GpuSlot& as_gpu_slot(const MaskSlot& slot);
GpuSlot& as_gpu_slot(MaskSlot& slot);

/// Whether Q-stationary kernels take the call, if the mask has a list for them. They support no softcap, gradients of
/// sinks, local K/V, accumulation, scattered gradients or deterministic order.
bool may_be_sparse(const AttnBackwardArgs& args);

}  // namespace tangram::gpu
