// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/builder/device_builder.hpp"

#include "attn/gpu/builder/launch.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::gpu::builder {

DeviceBuilder::DeviceBuilder(const schedule::ImageLayout& layout, const AttnShape& shape, const TileShape& forward,
                             const TileShape& backward, const MaskCapacity& capacity, std::byte* image)
    : shape_(shape),
      layout_(layout, shape, forward, backward, capacity, gpu_of_current_device()),
      memory_(cuda::DeviceBuffer::zeros(layout_.bytes())) {
  build_ = layout_.at(memory_.as<std::byte>(), image);
  if (capacity.block_size == 0) return;
  Blocks blocks;
  blocks.block = static_cast<int32_t>(capacity.block_size);
  bitmaps_.emplace_back(schedule::builder::place_blocks(blocks, shape_, nullptr));
}

void DeviceBuilder::build(const MaskData& data, cudaStream_t stream) {
  if (const auto* documents = std::get_if<CuSeqlens>(&data)) build_documents(*documents, stream);
  if (const auto* table = std::get_if<BlockTable>(&data)) build_blocks(*table, stream);
  if (const auto* list = std::get_if<RangeList>(&data)) build_ranges(*list, stream);
  control_block_.copy(&build_.state->report, stream);
}

void DeviceBuilder::build_documents(const CuSeqlens& documents, cudaStream_t stream) {
  Documents on_device;
  on_device.cu_q = documents.q;
  on_device.cu_k = documents.k == nullptr ? documents.q : documents.k;
  on_device.is_wide = documents.is_int64;
  on_device.count = static_cast<int32_t>(documents.documents);
  on_device.left = documents.window.left;
  on_device.right = documents.causal ? 0 : documents.window.right;
  launch_build(build_, on_device, stream);
}

void DeviceBuilder::build_blocks(const BlockTable& table, cudaStream_t stream) {
  Blocks blocks;
  blocks.block = static_cast<int32_t>(table.block_size);
  const size_t bytes = schedule::builder::place_blocks(blocks, shape_, nullptr);
  if (bitmaps_.empty() || bitmaps_.back().bytes() < bytes) {
    require(!cuda::is_captured(stream),
            "MaskBuffer::set_blocks: blocks of this size must be set before a stream is captured, since that allocates "
            "(got a stream that is)");
    bitmaps_.emplace_back(bytes);
  }
  schedule::builder::place_blocks(blocks, shape_, bitmaps_.back().as<std::byte>());
  blocks.indices = table.indices;
  blocks.is_wide = table.is_int64;
  blocks.width = static_cast<int32_t>(table.width);
  blocks.causal = table.causal;
  launch_build(build_, blocks, stream);
}

void DeviceBuilder::build_ranges(const RangeList& list, cudaStream_t stream) {
  Ranges ranges;
  ranges.q_ranges = list.q_ranges;
  ranges.k_ranges = list.k_ranges;
  ranges.types = list.types;
  ranges.type = static_cast<int>(list.type);
  ranges.is_wide = list.is_int64;
  ranges.count = static_cast<int32_t>(list.count);
  launch_build(build_, ranges, stream);
}

size_t DeviceBuilder::device_bytes() const {
  size_t bytes = memory_.bytes();
  for (const cuda::DeviceBuffer& bitmap : bitmaps_) bytes += bitmap.bytes();
  return bytes;
}

}  // namespace tangram::gpu::builder
