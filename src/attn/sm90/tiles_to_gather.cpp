// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/tiles_to_gather.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "attn/sm90/packing.hpp"
#include "schedule/gather_runs.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::sm90 {

namespace {

// Beside a step of 192 rows of a kernel that does not gather, as measured (head_dim 64): of 128 rows; of 192 that begin
// with blocks, where the others see two blocks now and then, and mask their steps.
constexpr double kSmallerStep = 0.8;
constexpr double kAlignedStep = 0.9;

/// The largest number of rows at whose multiples all slices begin and end, but where the sequence does; 0 if nowhere.
int64_t common_rows(std::span<const std::span<const AttnSlice>> slices, int64_t seqlen_q) {
  int64_t rows = 0;
  for (const std::span<const AttnSlice> of_mask : slices) {
    for (const AttnSlice& slice : of_mask) {
      rows = std::gcd(rows, slice.q_range.begin);
      if (slice.q_range.end != seqlen_q) rows = std::gcd(rows, slice.q_range.end);
    }
  }
  return rows;
}

TileShape tile_of(const AttnShape& shape, ForwardWorkTiles work_tiles) {
  return {forward_tile_rows(shape.head_dim, shape.head_dim_v, work_tiles) / packed_heads(shape),
          forward_tile_keys(shape.head_dim, shape.head_dim_v, false, work_tiles)};
}

}  // namespace

GatheredWorkTiles work_tiles_to_gather(int64_t block_rows, const AttnShape& shape) {
  GatheredWorkTiles smaller{ForwardWorkTiles::kGathered, tile_of(shape, ForwardWorkTiles::kGathered)};
  if (!aligns_work_tiles(shape.head_dim, shape.head_dim_v)) return smaller;
  GatheredWorkTiles larger{ForwardWorkTiles::kAligned, tile_of(shape, ForwardWorkTiles::kAligned)};
  // In the last work tile of a block, rows of another work tile are whole warpgroups.
  if (block_rows * packed_heads(shape) % 64 != 0 || block_rows > std::numeric_limits<int32_t>::max()) return smaller;
  const auto work_tiles_of_block = [&](int block_m) { return (block_rows + block_m - 1) / block_m; };
  if (work_tiles_of_block(larger.tile.block_m) >= work_tiles_of_block(smaller.tile.block_m)) return smaller;
  larger.tile.anew_every = static_cast<int>(block_rows);
  return larger;
}

GatheredWorkTiles work_tiles_to_gather(std::span<const std::span<const AttnSlice>> slices, const AttnShape& shape) {
  return work_tiles_to_gather(
      aligns_work_tiles(shape.head_dim, shape.head_dim_v) ? common_rows(slices, shape.seqlen_q) : 0, shape);
}

TilesToGather::TilesToGather(std::span<const TileList> tiles, std::span<const std::span<const AttnSlice>> slices,
                             const AttnShape& shape) {
  if (!gathers_runs(shape.head_dim, shape.head_dim_v)) return;
  const auto [work_tiles, wanted] = work_tiles_to_gather(slices, shape);
  work_tiles_ = work_tiles;
  view_.num_groups = shape.num_heads_q / packed_heads(shape, work_tiles_) / static_cast<int64_t>(tiles.size());
  if (wanted == tiles[0].shape) {
    view_.masks = tiles;
    return;
  }
  const bool aligned = work_tiles_ == ForwardWorkTiles::kAligned;
  const auto any = [](std::span<const TileList> lists, const auto& holds) {
    return std::any_of(lists.begin(), lists.end(), holds);
  };
  const bool may_gather = any(tiles, schedule::may_gather);
  if (!may_gather && !(aligned && any(tiles, schedule::cuts_blocks))) return;
  for (const std::span<const AttnSlice> of_mask : slices) {
    made_.push_back(schedule::build_tile_list(of_mask, shape.seqlen_q, shape.seqlen_k, wanted));
  }
  const bool whole = aligned && !any(made_, schedule::cuts_blocks);
  if (!may_gather && !whole) return;
  view_.masks = made_;
  view_.step = aligned ? kAlignedStep : kSmallerStep;
  view_.alone = whole;
}

}  // namespace tangram::sm90
