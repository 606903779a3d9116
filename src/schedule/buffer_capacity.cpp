// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/buffer_capacity.hpp"

#include <algorithm>
#include <variant>

#include "core/require.hpp"
#include "schedule/block_image.hpp"

namespace tangram::schedule {
namespace {

void check(const CuSeqlens& documents, int64_t max_slices) {
  constexpr const char* kName = "MaskBuffer::set_cu_seqlens";
  require(documents.documents >= 0 && documents.documents <= max_slices,
          "{}: the mask must fit the buffer, a larger max_documents makes room (got {} documents, room for {})", kName,
          documents.documents, max_slices);
  require(documents.q != nullptr, "{}: needs cu_seqlens_q (got none)", kName);
  require(documents.window.left >= -1 && documents.window.right >= -1,
          "{}: window sides must be -1 (unbounded) or more (got left={}, right={})", kName, documents.window.left,
          documents.window.right);
}

void check(const BlockTable& table, const AttnShape& shape, int64_t multiple, int64_t max_slices) {
  constexpr const char* kName = "MaskBuffer::set_blocks";
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t least = std::max(multiple, kLeastBlock);
  require(least <= table.block_size && table.block_size <= kMost,
          "{}: block_size must be at least {} (got block_size={})", kName, least, table.block_size);
  require(table.block_size % multiple == 0, "{}: block_size must be a multiple of the buffer's, {} (got block_size={})",
          kName, multiple, table.block_size);
  require(
      table.head_groups == 1,
      "{}: blocks of head groups must be of a buffer made for blocks, MaskCapacity::block_size and head_groups (got "
      "head_groups={})",
      kName, table.head_groups);
  require(!table.causal || shape.seqlen_q == shape.seqlen_k,
          "{}: causal blocks must be of sequences of one length (got {} queries and {} keys)", kName, shape.seqlen_q,
          shape.seqlen_k);
  const int64_t rows = (shape.seqlen_q + table.block_size - 1) / table.block_size;
  require(table.width >= 0 && (rows == 0 || table.width <= max_slices / rows),
          "{}: the mask must fit the buffer, a larger max_slices makes room (got {} query blocks of up to {} blocks, "
          "room for {} "
          "blocks)",
          kName, rows, table.width, max_slices);
  require(table.indices != nullptr || rows * table.width == 0, "{}: needs block indices (got none)", kName);
}

void check(const RangeList& list, int64_t max_slices) {
  constexpr const char* kName = "MaskBuffer::set_ranges";
  require(list.count >= 0 && list.count <= max_slices,
          "{}: the mask must fit the buffer, a larger max_slices makes room (got {} ranges, room for {})", kName,
          list.count, max_slices);
  require((list.q_ranges != nullptr && list.k_ranges != nullptr) || list.count == 0, "{}: needs ranges (got none)",
          kName);
  const int type = static_cast<int>(list.type);
  require(0 <= type && type <= static_cast<int>(MaskType::kBiCausal),
          "{}: types must be 0 (full), 1 (causal), 2 (inv_causal) or 3 (bi_causal) (got {})", kName, type);
}

}  // namespace

bool fills_steps(const MaskCapacity& capacity) {
  return capacity.block_size > 0 && capacity.block_size % kBlockStepKeys == 0 && capacity.head_groups == 1;
}

MaskCapacity list_capacity(const MaskCapacity& capacity) {
  MaskCapacity room = capacity;
  if (room.max_slices == 0) room.max_slices = room.max_documents;
  if (!fills_steps(capacity)) return room;
  // Lists count slices of 128 rows. Blocks begin where tiles do: documents of them need no more tiles.
  room.max_slices *= capacity.block_size / kBlockStepKeys;
  room.max_documents = 1;
  return room;
}

void check_is_blocks(const MaskData& data) {
  require(std::holds_alternative<BlockTable>(data),
          "MaskBuffer: a buffer made for blocks must get them by set_blocks() or set() (got {})",
          std::holds_alternative<CuSeqlens>(data) ? "documents" : "ranges");
}

void check_capacity(const MaskData& data, const AttnShape& shape, const MaskCapacity& room) {
  if (room.block_size > 0) check_is_blocks(data);
  require(room.allow_fully_masked_rows,
          "MaskBuffer: device masks need allow_fully_masked_rows=true, since the host cannot rule out fully masked "
          "rows (got "
          "allow_fully_masked_rows=false)");
  if (const auto* documents = std::get_if<CuSeqlens>(&data)) check(*documents, room.max_slices);
  if (const auto* table = std::get_if<BlockTable>(&data)) {
    check(*table, shape, std::max<int64_t>(room.block_size, 1), room.max_slices);
  }
  if (const auto* list = std::get_if<RangeList>(&data)) check(*list, room.max_slices);
}

}  // namespace tangram::schedule
