// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device memory for the lists of one mask of small blocks after the other: what list_buffer.hpp is for other masks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "attn/gpu/backward_scratch.hpp"
#include "attn/gpu/builder/error_report_buffer.hpp"
#include "attn/gpu/padded_slot.hpp"
#include "cuda/device_buffer.hpp"
#include "schedule/block_image.hpp"
#include "schedule/builder/block_lists.hpp"
#include "schedule/choose_kernels.hpp"
#include "tangram/mask_data.hpp"
#include "tangram/slice.hpp"

namespace tangram::gpu {

/// An image (NOTE [block image]) in device memory with the forward kernel's counters behind it, a workspace for
/// building images, and host memory to copy them from. All is allocated on construction. What calls are given depends
/// on the capacity alone. Used by one call at a time.
class BlockBuffer final : public PaddedSlot {
 public:
  /// `choice`: of a capacity for blocks. Throws InvalidArgument for shapes and capacities that kernels which gather do
  /// not take, CudaError.
  BlockBuffer(const AttnShape& shape, const schedule::KernelTable& kernels, const schedule::PaddedChoice& choice);

  /// Makes the metadata for install(), from one mask for each head group.
  std::unique_ptr<MaskMetadata> build(std::span<const std::span<const AttnSlice>> masks) const;
  /// Enqueues the copy of the lists, a BlockBufferMetadata. Throws InvalidArgument before that if they do not fit,
  /// CudaError.
  void install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) override;
  /// Enqueues kernels that build the lists; may be captured. Throws InvalidArgument for what can be seen without the
  /// data, CudaError.
  void install_device(const MaskData& data, cudaStream_t stream) override;
  /// Throws InvalidArgument for a mask that the GPU has refused, once, when the host knows of it.
  void check_errors() const override { memory_->control_block.check(); }

  void check_backward(const char* function, const AttnBackwardArgs& args) const override;
  ForwardView forward_view() const override;
  bool is_sparse(const AttnBackwardArgs& /*args*/) const override { return !layout_.kv_stationary(); }
  SparseView sparse_view() const override;
  BackwardView backward_view(bool deterministic, void* workspace) const override;
  size_t backward_workspace_bytes() const override;
  bool is_held_by_graphs() const override;
  int64_t device_bytes() const override { return static_cast<int64_t>(memory_->image.bytes() + memory_->work.bytes()); }
  int64_t host_bytes() const override;

 private:
  void keep_while_graph_lives(cudaStream_t stream) const override;

  /// Graphs that were captured with it hold it, too.
  struct Memory {
    cuda::DeviceBuffer image, work;
    builder::ErrorReportBuffer control_block;
  };

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_->image.as<char>() + offset);
  }

  schedule::ForwardWorkTiles work_tiles_;
  schedule::BlockImageLayout layout_;
  std::optional<BackwardSizes> sizes_;  // where keys rest
  std::shared_ptr<Memory> memory_;
  schedule::builder::BlockBuild build_;
};

}  // namespace tangram::gpu
