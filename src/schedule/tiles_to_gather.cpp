// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/tiles_to_gather.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "schedule/choose_kernels.hpp"
#include "schedule/gather_runs.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::schedule {

namespace {

// Cost of steps (head_dim 64, measured) relative to a step of 192 rows of a kernel that does not gather. Steps of 128
// rows; steps of 192 rows that begin with blocks, if other tiles see two blocks now and then and mask their steps.
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

TileShape tile_of(const AttnShape& shape, const WorkTileShape& work_tile) {
  return {work_tile.rows / packed_heads(shape), work_tile.keys};
}

}  // namespace

GatheredWorkTiles work_tiles_to_gather(int64_t block_rows, const AttnShape& shape, const KernelTable& kernels) {
  const auto of = [&](ForwardWorkTiles kind) { return GatheredWorkTiles{kind, tile_of(shape, kernels.of(kind))}; };
  const GatheredWorkTiles smaller = of(ForwardWorkTiles::kGathered);
  if (!kernels.aligns_work_tiles) return smaller;
  GatheredWorkTiles larger = of(ForwardWorkTiles::kAligned);
  // In the last work tile of a block, rows of another work tile are whole warpgroups.
  if (block_rows * packed_heads(shape) % 64 != 0 || block_rows > std::numeric_limits<int32_t>::max()) return smaller;
  const auto work_tiles_of_block = [&](int block_m) { return (block_rows + block_m - 1) / block_m; };
  if (work_tiles_of_block(larger.tile.block_m) >= work_tiles_of_block(smaller.tile.block_m)) return smaller;
  larger.tile.anew_every = static_cast<int>(block_rows);
  return larger;
}

GatheredWorkTiles work_tiles_to_gather(std::span<const std::span<const AttnSlice>> slices, const AttnShape& shape,
                                       const KernelTable& kernels) {
  return work_tiles_to_gather(kernels.aligns_work_tiles ? common_rows(slices, shape.seqlen_q) : 0, shape, kernels);
}

TilesToGather::TilesToGather(std::span<const TileList> tiles, std::span<const std::span<const AttnSlice>> slices,
                             const AttnShape& shape, const KernelTable& kernels) {
  if (!kernels.gathers) return;
  const auto [work_tiles, wanted] = work_tiles_to_gather(slices, shape, kernels);
  work_tiles_ = work_tiles;
  view_.num_groups = shape.num_heads_q / packed_heads(kernels, shape, work_tiles_) / static_cast<int64_t>(tiles.size());
  if (wanted == tiles[0].shape) {
    view_.masks = tiles;
    return;
  }
  const bool aligned = work_tiles_ == ForwardWorkTiles::kAligned;
  const auto any = [](std::span<const TileList> lists, const auto& holds) {
    return std::any_of(lists.begin(), lists.end(), holds);
  };
  const bool may_gather = any(tiles, schedule::may_gather);
  if (!may_gather && !(aligned && any(tiles, cuts_blocks))) return;
  for (const std::span<const AttnSlice> of_mask : slices) {
    made_.push_back(build_tile_list(of_mask, shape.seqlen_q, shape.seqlen_k, wanted));
  }
  const bool whole = aligned && !any(made_, cuts_blocks);
  if (!may_gather && !whole) return;
  view_.masks = made_;
  view_.step = aligned ? kAlignedStep : kSmallerStep;
  view_.alone = whole;
}

}  // namespace tangram::schedule
