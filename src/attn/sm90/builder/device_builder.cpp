// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/builder/device_builder.hpp"

#include <algorithm>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/builder/launch.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::sm90::builder {
namespace {

constexpr int64_t kLeastBlock = 16;

}  // namespace

DeviceBuilder::DeviceBuilder(const schedule::ImageLayout& layout, const AttnShape& shape, const TileShape& forward,
                             const MaskCapacity& capacity, std::byte* image)
    : shape_(shape),
      of_blocks_(std::max<int64_t>(capacity.block_size, 1)),
      least_block_(std::max(of_blocks_, kLeastBlock)),
      layout_(layout, shape, forward, backward::kTileShape, capacity, gpu_of_current_device()),
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
  board_.copy(&build_.state->report, stream);
}

void DeviceBuilder::build_documents(const CuSeqlens& documents, cudaStream_t stream) {
  constexpr const char* kName = "MaskBuffer::set_cu_seqlens";
  require(documents.documents >= 0 && documents.documents <= layout_.max_slices(),
          "{}: the mask must fit the buffer, more documents make room (got {} documents, room for {})", kName,
          documents.documents, layout_.max_slices());
  require(documents.q != nullptr, "{}: needs cu_seqlens_q (got none)", kName);
  require(documents.window.left >= -1 && documents.window.right >= -1,
          "{}: window sides must be -1 (unbounded) or more (got left={}, right={})", kName, documents.window.left,
          documents.window.right);
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
  constexpr const char* kName = "MaskBuffer::set_blocks";
  constexpr int64_t kMost = int64_t{1} << 30;
  require(least_block_ <= table.block_size && table.block_size <= kMost && table.block_size % of_blocks_ == 0,
          "{}: block_size must be at least {}, and a multiple of {} (got block_size={})", kName, least_block_,
          of_blocks_, table.block_size);
  require(
      table.head_groups == 1,
      "{}: blocks of head groups must be of a buffer made for blocks, MaskCapacity::block_size and head_groups (got "
      "head_groups={})",
      kName, table.head_groups);
  require(!table.causal || shape_.seqlen_q == shape_.seqlen_k,
          "{}: causal blocks must be of sequences of one length (got {} queries and {} keys)", kName, shape_.seqlen_q,
          shape_.seqlen_k);
  Blocks blocks;
  blocks.block = static_cast<int32_t>(table.block_size);
  const size_t bytes = schedule::builder::place_blocks(blocks, shape_, nullptr);
  const int64_t rows = blocks.lines[0].num_lines;
  require(
      table.width >= 0 && (rows == 0 || table.width <= layout_.max_slices() / rows),
      "{}: the mask must fit the buffer, more slices make room (got {} query blocks of up to {} blocks, room for {} "
      "blocks)",
      kName, rows, table.width, layout_.max_slices());
  require(table.indices != nullptr || rows * table.width == 0, "{}: needs block indices (got none)", kName);
  if (bitmaps_.empty() || bitmaps_.back().bytes() < bytes) {
    require(!cuda::is_captured(stream),
            "{}: blocks of this size must be set before a stream is captured, since that allocates (got a stream that "
            "is)",
            kName);
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
  constexpr const char* kName = "MaskBuffer::set_ranges";
  require(list.count >= 0 && list.count <= layout_.max_slices(),
          "{}: the mask must fit the buffer, more slices make room (got {} ranges, room for {})", kName, list.count,
          layout_.max_slices());
  require((list.q_ranges != nullptr && list.k_ranges != nullptr) || list.count == 0, "{}: needs ranges (got none)",
          kName);
  const int type = static_cast<int>(list.type);
  require(0 <= type && type <= static_cast<int>(MaskType::kBiCausal),
          "{}: types must be 0 (full), 1 (causal), 2 (inv_causal) or 3 (bi_causal) (got {})", kName, type);
  Ranges ranges;
  ranges.q_ranges = list.q_ranges;
  ranges.k_ranges = list.k_ranges;
  ranges.types = list.types;
  ranges.type = type;
  ranges.is_wide = list.is_int64;
  ranges.count = static_cast<int32_t>(list.count);
  launch_build(build_, ranges, stream);
}

size_t DeviceBuilder::device_bytes() const {
  size_t bytes = memory_.bytes();
  for (const cuda::DeviceBuffer& bitmap : bitmaps_) bytes += bitmap.bytes();
  return bytes;
}

}  // namespace tangram::sm90::builder
