// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/builder/block_build.hpp"

#include <algorithm>
#include <type_traits>

#include "core/require.hpp"
#include "core/rounding.hpp"

namespace tangram::schedule::builder {
namespace {

int64_t blocks_of(int64_t rows, int64_t block) { return (rows + block - 1) / block; }

/// Calls place(pointer, entries) for all arrays to work in.
template <class Place>
void place_arrays(const BlockImageLayout& image, BlockBuild& build, const Place& place) {
  const AttnShape& shape = image.shape();
  const int64_t block = image.capacity().block_size, masks = image.capacity().head_groups;
  const int64_t lines = masks * blocks_of(shape.seqlen_q, block);
  place(build.state, 1);
  place(build.words, lines * blocks_of(blocks_of(shape.seqlen_k, block), 32));
  place(build.num_full, lines);
  place(build.first_group, lines + 1);
  place(build.first_run, lines + 1);
  place(build.has_diagonal, lines);
  for (int pass = 0; pass < 2; ++pass) place(build.costs[pass], masks * image.num_tiles(pass));
  if (!image.kv_stationary()) return;
  const int64_t tiles = masks * image.keys().schedule().num_tiles;
  place(build.keys.words, masks * blocks_of(shape.seqlen_k, block) * blocks_of(blocks_of(shape.seqlen_q, block), 32));
  place(build.keys.first_run, tiles + 1);
  place(build.keys.visits, tiles);
}

}  // namespace

size_t block_build_bytes(const BlockImageLayout& image) {
  BlockBuild build;
  size_t end = 0;
  place_arrays(image, build, [&](auto& pointer, int64_t count) {
    end = round_up(end + static_cast<size_t>(count) * sizeof(*pointer), 256);
  });
  return end;
}

BlockBuild block_build_at(const BlockImageLayout& image, std::byte* memory, std::byte* to) {
  BlockBuild build;
  build.has_forward = image.capacity().passes != AttnPasses::kBackward;
  build.has_backward = image.capacity().passes != AttnPasses::kForward && !image.kv_stationary();
  build.seqlen_q = static_cast<int32_t>(image.shape().seqlen_q);
  build.seqlen_k = static_cast<int32_t>(image.shape().seqlen_k);
  build.gathers = image.gathers();
  build.tile_rows = image.tile_rows();
  for (int pass = 0; pass < 2; ++pass) {
    build.tiles[pass] = image.tiles(pass);
    build.num_tiles[pass] = static_cast<int32_t>(image.num_tiles(pass));
  }
  build.head_groups = image.capacity().head_groups;
  build.listed_head_groups = image.listed_head_groups();
  build.sections[0] = image.forward_section();
  build.sections[1] = image.backward_section();
  size_t end = 0;
  const auto at = [](auto*& pointer, std::byte* from, size_t offset) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(from + offset);
  };
  place_arrays(image, build, [&](auto& pointer, int64_t count) {
    at(pointer, memory, end);
    end = round_up(end + static_cast<size_t>(count) * sizeof(*pointer), 256);
  });
  at(build.forward_work_tiles, to, image.forward_work_tiles());
  at(build.work_tile_groups, to, image.work_tile_groups());
  at(build.backward_work_tiles, to, image.backward_work_tiles());
  at(build.runs, to, image.runs());
  at(build.diagonal_masks, to, image.diagonal_masks());
  at(build.groups, to, image.groups());
  if (image.kv_stationary()) {
    KeyBuild& keys = build.keys;
    keys.rest = true;
    keys.schedule = image.keys().schedule();
    keys.num_q_tiles = image.keys().num_q_tiles();
    keys.seqlen_q = build.seqlen_q;
    keys.seqlen_k = build.seqlen_k;
    at(keys.work_tiles, to, image.keys().work_tiles());
    at(keys.runs, to, image.keys().runs());
    at(keys.run_tiles, to, image.keys().run_tiles());
    at(keys.q_tiles, to, image.keys().q_tiles());
  }
  build.groups_index = static_cast<int32_t>(image.groups() / sizeof(int32_t));
  build.masks_index = static_cast<int32_t>(image.diagonal_masks() / sizeof(GroupMask));
  return build;
}

BlockLists block_lists_of(const BlockImageLayout& image, const BlockTable& table) {
  constexpr const char* kName = "MaskBuffer::set_blocks";
  const AttnShape& shape = image.shape();
  const MaskCapacity& capacity = image.capacity();
  const int64_t least = capacity.block_size, multiple = image.block_multiple();
  require(table.head_groups == capacity.head_groups,
          "{}: tables must be of the buffer's head groups, {} (got head_groups={})", kName, capacity.head_groups,
          table.head_groups);
  require(least <= table.block_size && table.block_size <= int64_t{1} << 30 && table.block_size % multiple == 0,
          "{}: block_size must be at least that of the buffer, {}, and a multiple of {} (got block_size={})", kName,
          least, multiple, table.block_size);
  require(!table.causal || shape.seqlen_q == shape.seqlen_k,
          "{}: causal blocks must be of sequences of one length (got {} queries and {} keys)", kName, shape.seqlen_q,
          shape.seqlen_k);
  const int64_t rows = blocks_of(shape.seqlen_q, table.block_size), lines = rows * capacity.head_groups;
  require(
      table.width >= 0 && (lines == 0 || table.width <= image.max_groups() / (table.block_size / kGroupKeys) / lines),
      "{}: the mask must fit the buffer, a larger max_slices makes room (got {} x {} query blocks of up to {} blocks "
      "of {}, "
      "room for {} blocks of {})",
      kName, capacity.head_groups, rows, table.width, table.block_size, capacity.max_slices, least);
  require(table.indices != nullptr || lines * table.width == 0, "{}: needs block indices (got none)", kName);
  BlockLists lists;
  lists.indices = table.indices;
  lists.is_wide = table.is_int64;
  lists.width = static_cast<int32_t>(table.width);
  lists.block = static_cast<int32_t>(table.block_size);
  lists.causal = table.causal;
  lists.num_key_blocks = static_cast<int32_t>(blocks_of(shape.seqlen_k, table.block_size));
  lists.lines_per_mask = static_cast<int32_t>(rows);
  lists.num_lines = static_cast<int32_t>(lines);
  lists.words_per_line = static_cast<int32_t>(blocks_of(lists.num_key_blocks, 32));
  lists.columns = {lists.block, lists.causal, lists.num_key_blocks, static_cast<int32_t>(blocks_of(rows, 32))};
  return lists;
}

}  // namespace tangram::schedule::builder
