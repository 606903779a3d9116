// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device memory for the lists of one mask of small blocks after the other: what list_buffer.hpp is for other masks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "attn/sm90/backward/call_layout.hpp"
#include "attn/sm90/builder/error_report_buffer.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/query_backward/device_group_list.hpp"
#include "attn/sm90/tiles_to_gather.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/pinned_ring.hpp"
#include "schedule/block_image.hpp"
#include "schedule/builder/block_lists.hpp"
#include "tangram/mask_data.hpp"
#include "tangram/slice.hpp"

namespace tangram::sm90 {

/// An image (NOTE [block image]) in device memory, the counters of the forward kernel behind it, memory in which images
/// are built, and host memory from which they are copied. All is allocated on construction. What calls are given
/// depends on the capacity alone. Used by one call at a time.
class BlockBuffer {
 public:
  /// `work_tiles`: of the forward pass. Throws InvalidArgument for shapes and capacities that kernels which gather do
  /// not take, CudaError.
  BlockBuffer(const AttnShape& shape, const MaskCapacity& capacity, const GatheredWorkTiles& work_tiles);

  /// Enqueues the copy of the lists of these masks, one for each head group. Throws InvalidArgument before that if they
  /// do not fit, CudaError.
  void set(std::span<const std::span<const AttnSlice>> masks, cudaStream_t stream);
  /// Enqueues kernels that build the lists; may be captured. Throws InvalidArgument for what can be seen without the
  /// data, CudaError.
  void set(const MaskData& data, cudaStream_t stream);
  bool is_set() const { return is_set_; }
  /// Throws InvalidArgument for a mask that the GPU has refused, once, when the host knows of it.
  void check_refused() const { memory_->control_block.check(); }

  /// Fills in pointers and sizes of lists.
  void fill(ForwardParams& params) const;
  /// GatheredParams::groups.
  const int32_t* groups() const { return at<int32_t>(0); }
  query_backward::GroupListView backward_lists() const;  ///< of a backward pass that gathers
  /// The same for the KV-stationary kernel, with pointers into its workspace: backward_workspace_bytes(), of any
  /// content.
  void fill(backward::Params& params, backward::PrePostParams& pre_post, void* workspace) const;
  size_t backward_workspace_bytes() const;

  /// As those of ListBuffer.
  void keep_while_graph_lives(cudaStream_t stream) const;
  bool is_held_by_graphs() const;

  const MaskCapacity& capacity() const { return layout_.capacity(); }
  ForwardWorkTiles forward_work_tiles() const { return work_tiles_; }
  /// Whether the forward pass has gathered runs.
  bool gathers() const { return layout_.gathers(); }
  bool kv_stationary() const { return layout_.kv_stationary(); }
  size_t device_bytes() const { return memory_->image.bytes() + memory_->work.bytes(); }
  size_t host_bytes() const;

 private:
  /// Graphs that were captured with it hold it, too.
  struct Memory {
    cuda::DeviceBuffer image, work;
    builder::ErrorReportBuffer control_block;
  };

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_->image.as<char>() + offset);
  }

  ForwardWorkTiles work_tiles_;
  schedule::BlockImageLayout layout_;
  std::optional<backward::CallLayout> call_;  // where keys rest
  std::shared_ptr<Memory> memory_;
  schedule::builder::BlockBuild build_;
  std::unique_ptr<cuda::PinnedRing> ring_;  // null before the first mask of the host
  bool is_set_ = false;
};

}  // namespace tangram::sm90
