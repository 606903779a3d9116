// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Builds lists of masks on the GPU, out of data that the host has not seen.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "attn/gpu/builder/error_report_buffer.hpp"
#include "cuda/device_buffer.hpp"
#include "schedule/builder/build_layout.hpp"
#include "tangram/mask_data.hpp"

namespace tangram::gpu::builder {

/// Memory to build images in, and an error report in page-locked memory to which the GPU writes what it refuses.
/// Allocates on construction, and for the bitmap of blocks.
class DeviceBuilder {
 public:
  /// `image`: in device memory, which outlives the object. Of a capacity for blocks allocates for these, too. Throws
  /// CudaError.
  DeviceBuilder(const schedule::ImageLayout& layout, const AttnShape& shape, const TileShape& forward,
                const TileShape& backward, const MaskCapacity& capacity, std::byte* image);

  /// Enqueues kernels that build the image, and the copy of their report. That copy comes last. A kernel may start
  /// before its predecessor has ended, and so read lists early, but never before a copy has ended. `data` has passed
  /// schedule::check_capacity. Throws CudaError. Allocates for smaller blocks than before, which a stream that is
  /// captured forbids (InvalidArgument).
  void build(const MaskData& data, cudaStream_t stream);

  /// Throws InvalidArgument for a mask that was refused since the last time that this was asked, as far as the host
  /// knows by now.
  void check() { control_block_.check(); }

  size_t device_bytes() const;
  size_t host_bytes() const { return ErrorReportBuffer::kBytes; }

 private:
  void build_documents(const CuSeqlens& documents, cudaStream_t stream);
  void build_blocks(const BlockTable& table, cudaStream_t stream);
  void build_ranges(const RangeList& list, cudaStream_t stream);

  AttnShape shape_;
  schedule::builder::BuildLayout layout_;
  cuda::DeviceBuffer memory_;
  ErrorReportBuffer control_block_;
  schedule::builder::SortBuild build_;
  std::vector<cuda::DeviceBuffer> bitmaps_;  // of blocks, each larger than those before, which graphs may hold
};

}  // namespace tangram::gpu::builder
