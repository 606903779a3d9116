// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device memory for the lists of one mask after the other, which captured kernels read wherever they are replayed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "attn/gpu/backward_scratch.hpp"
#include "attn/gpu/builder/device_builder.hpp"
#include "attn/gpu/padded_slot.hpp"
#include "cuda/device_buffer.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/mask_image.hpp"

namespace tangram::gpu {

/// An image (NOTE [image]) in device memory with the forward kernel's counters behind it, and host memory to copy
/// images from. A buffer for block masks has host memory from the host's first mask on. What calls are given depends on
/// the capacity alone: pointers, and sizes of grids. Used by one call at a time.
class ListBuffer final : public PaddedSlot {
 public:
  /// Allocates. `choice`: of lists of any mask. Throws InvalidArgument, CudaError.
  ListBuffer(const AttnShape& shape, const schedule::KernelTable& kernels, const schedule::PaddedChoice& choice);

  /// Enqueues the copy of the lists, a ListBufferMetadata. Throws InvalidArgument before that if they do not fit,
  /// CudaError.
  void install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) override;
  /// Enqueues kernels that build the lists from data in device memory. It may be captured, except the first time, when
  /// it allocates unless the buffer is for blocks. Throws InvalidArgument for what can be seen without the data,
  /// CudaError.
  void install_device(const MaskData& data, cudaStream_t stream) override;
  /// Throws InvalidArgument for a mask that the GPU has refused, once, when the host knows of it.
  void check_errors() const override {
    if (builder_ != nullptr) builder_->check();
  }

  void check_backward(const char* function, const AttnBackwardArgs& args) const override;
  ForwardView forward_view() const override;
  bool is_sparse(const AttnBackwardArgs& /*args*/) const override { return false; }
  BackwardView backward_view(bool deterministic, void* workspace) const override;
  size_t backward_workspace_bytes() const override;
  bool is_held_by_graphs() const override;

  const TileShape& forward_tile() const { return forward_; }
  int64_t device_bytes() const override;
  int64_t host_bytes() const override;

 private:
  void keep_while_graph_lives(cudaStream_t stream) const override;
  void make_builder();
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_->as<char>() + offset);
  }

  TileShape forward_;
  schedule::ForwardWorkTiles work_tiles_;
  schedule::ImageLayout layout_;
  BackwardSizes sizes_;
  std::shared_ptr<cuda::DeviceBuffer> memory_;       // graphs that were captured with it hold it, too
  std::shared_ptr<builder::DeviceBuilder> builder_;  // likewise; null before it is wanted
};

}  // namespace tangram::gpu
