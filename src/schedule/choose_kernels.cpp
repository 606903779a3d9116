// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/choose_kernels.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/require.hpp"
#include "schedule/block_image.hpp"
#include "schedule/buffer_capacity.hpp"
#include "schedule/head_lists.hpp"
#include "schedule/key_image.hpp"
#include "schedule/ready_order.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/tiles_to_gather.hpp"

namespace tangram::schedule {
namespace {

/// Runs per work tile from which kernels that fetch them ahead are faster. Measured: 1.02 times with 7 of 256 keys,
/// 1.09 with 14 of 128, 0.99 with the one or two of packed documents (docs/devlog/2026-11-22-runs-of-keys.md).
constexpr size_t kManyRuns = 4;

/// `gathered`: of the lists for kernels that gather.
void choose_kernel(ForwardLists& lists, ForwardWorkTiles gathered, const KernelTable& kernels, const AttnShape& shape) {
  lists.choice.work_tiles = lists.choice.gathers ? gathered : plain_work_tiles(kernels, shape);
  lists.choice.many_runs =
      !lists.choice.gathers && lists.part_tiles.empty() && lists.runs.size() >= kManyRuns * lists.work_tiles.size();
}

/// Work tiles that run before awaited keys can be expected. Their number is that of multiprocessors, divided by the K/V
/// heads that kernels schedule together, those whose keys and values share the cache.
int64_t first_wave(const GpuModel& gpu, const AttnShape& shape) {
  const int64_t head_bytes = std::max<int64_t>(
      shape.seqlen_k * (shape.head_dim + shape.head_dim_v) * static_cast<int64_t>(size_of(shape.dtype)), 1);
  const int64_t heads = std::clamp<int64_t>(kept_in_l2(gpu) / head_bytes, 1, shape.num_heads_kv);
  return (gpu.multiprocessors + heads - 1) / heads;
}

int64_t num_head_groups(const KernelTable& kernels, const AttnShape& shape) {
  return shape.num_heads_q / packed_heads(kernels, shape, plain_work_tiles(kernels, shape));
}

}  // namespace

int packed_heads(const AttnShape& shape) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  int pack = 1;
  while (pack < 64 && group % (2 * pack) == 0) pack *= 2;
  return pack;
}

int packed_heads(const KernelTable& kernels, const AttnShape& shape, ForwardWorkTiles work_tiles) {
  const int power = packed_heads(shape);
  const bool gathers = work_tiles == ForwardWorkTiles::kGathered || work_tiles == ForwardWorkTiles::kAligned;
  if (gathers || !kernels.packs_any_heads) return power;
  const int group = shape.num_heads_q / shape.num_heads_kv, rows = kernels.of(work_tiles).rows;
  const auto fits = [&](int pack) { return group % pack == 0 && rows % pack <= rows / 32; };
  for (int pack = std::min(group, 64); pack > power; --pack) {
    if (fits(pack)) return pack;
  }
  return power;
}

ForwardWorkTiles plain_work_tiles(const KernelTable& kernels, const AttnShape& shape) {
  return shape.seqlen_q * shape.num_heads_q >= kernels.many_rows ? ForwardWorkTiles::kMany : ForwardWorkTiles::kPlain;
}

TileShape forward_tile(const KernelTable& kernels, const AttnShape& shape) {
  const ForwardWorkTiles work_tiles = plain_work_tiles(kernels, shape);
  const auto [rows, keys] = kernels.of(work_tiles);
  return {rows / packed_heads(kernels, shape, work_tiles), keys};
}

int32_t groups_per_section(const GpuModel& gpu, const AttnShape& shape, int64_t bytes_of_key, int64_t total_steps,
                           int64_t longest_steps, int pack) {
  const int64_t head_bytes = std::max<int64_t>(shape.seqlen_k * bytes_of_key, 1);
  const int64_t fitting = std::clamp<int64_t>(kept_in_l2(gpu) / head_bytes, 1, shape.num_heads_kv);
  const int64_t groups_per_head = shape.num_heads_q / shape.num_heads_kv / pack;
  const int64_t head_steps = std::max<int64_t>(total_steps * groups_per_head, 1);
  const int64_t balanced = (4 * longest_steps * gpu.multiprocessors + head_steps - 1) / head_steps;
  const int64_t wanted = std::clamp<int64_t>(std::max(fitting, balanced), 1, shape.num_heads_kv);
  const int64_t sections = (shape.num_heads_kv + wanted - 1) / wanted;
  const int64_t heads = (shape.num_heads_kv + sections - 1) / sections;
  return static_cast<int32_t>(heads * groups_per_head);
}

TileList list_forward_tiles(std::span<const AttnSlice> slices, const AttnShape& shape, const KernelTable& kernels,
                            const TileShape& tile) {
  TileList tiles = build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, tile);
  const int64_t groups = num_head_groups(kernels, shape);
  require(static_cast<int64_t>(tiles.work_tiles.size()) * groups < (int64_t{1} << 31) - 65536,
          "AttnBackend::build: tiles times head groups must stay below 2^31 (got {} and {})", tiles.work_tiles.size(),
          groups);
  return tiles;
}

ForwardLists choose_forward(TileList tiles, std::span<const AttnSlice> slices, const AttnShape& shape,
                            const KernelTable& kernels, const GpuModel& gpu) {
  TilesToGather gatherable({&tiles, 1}, {&slices, 1}, shape, kernels);
  SplitOrGathered chosen = std::move(split_or_gather({&tiles, 1}, shape, num_head_groups(kernels, shape), gpu,
                                                     gatherable.view(), kernels.splits_kv)[0]);
  TileList& whole = chosen.tiles == &tiles ? tiles : gatherable.made()[0];
  TileList& walked = chosen.parts ? chosen.parts->list : whole;
  ForwardLists lists;
  lists.choice.gathers = chosen.gathered.has_value();
  lists.work_tiles = std::move(chosen.gathered ? chosen.gathered->work_tiles : walked.work_tiles);
  lists.runs = std::move(chosen.gathered ? chosen.gathered->runs : walked.runs);
  lists.intervals = std::move(walked.intervals);
  if (chosen.gathered) lists.key_groups = std::move(chosen.gathered->groups);
  if (chosen.parts) {
    lists.part_rows = std::move(chosen.parts->first_rows);
    lists.part_tiles = std::move(chosen.parts->tiles);
    lists.num_part_rows = chosen.parts->num_rows;
  }
  choose_kernel(lists, gatherable.work_tiles(), kernels, shape);
  for (const MaskTile& work_tile : lists.work_tiles) {
    const int64_t steps = work_tile_steps(work_tile, lists.runs, walked.shape.block_n);
    lists.total_steps += steps;
    lists.longest_steps = std::max(lists.longest_steps, steps);
  }
  return lists;
}

ForwardLists choose_forward(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                            const KernelTable& kernels, const GpuModel& gpu,
                            std::span<const KeyReadyFlag> ready_flags) {
  const TileShape tile = forward_tile(kernels, shape);
  if (masks.size() == 1) {
    TileList tiles = list_forward_tiles(masks[0], shape, kernels, tile);
    if (!ready_flags.empty()) order_by_readiness(tiles, ready_flags, first_wave(gpu, shape));
    return choose_forward(std::move(tiles), masks[0], shape, kernels, gpu);
  }
  std::vector<TileList> tiles;
  for (const std::span<const AttnSlice> slices : masks) {
    tiles.push_back(list_forward_tiles(slices, shape, kernels, tile));
  }
  const TilesToGather gatherable(tiles, masks, shape, kernels);
  ForwardLists lists =
      join_tiles(tiles, shape, num_head_groups(kernels, shape), gpu, gatherable.view(), kernels.splits_kv);
  choose_kernel(lists, gatherable.work_tiles(), kernels, shape);
  return lists;
}

PaddedChoice choose_padded(const AttnShape& shape, const MaskCapacity& capacity, const KernelTable& kernels,
                           const GpuModel& gpu) {
  PaddedChoice plain{
      .work_tiles = plain_work_tiles(kernels, shape), .tile = forward_tile(kernels, shape), .capacity = capacity};
  if (capacity.block_size == 0) return plain;
  const auto [work_tiles, tile] = work_tiles_to_gather(capacity.block_size, shape, kernels);
  const bool aligned = work_tiles == ForwardWorkTiles::kAligned;
  if (fills_steps(capacity)) {
    plain.capacity = list_capacity(capacity);
    if (aligned) plain.work_tiles = work_tiles, plain.tile = tile;
    return plain;
  }
  require(kernels.gathers,
          "MaskBuffer: blocks must be of heads that gather them, of 64 or 128 (got head_dim={}, head_dim_v={})",
          shape.head_dim, shape.head_dim_v);
  // Blocks that fill the steps of kernels that do not gather, where these have such tiles, are not gathered.
  const bool has_tiles = aligned || kernels.fetches_ranges;
  return {.is_of_blocks = true,
          .work_tiles = work_tiles,
          .tile = tile,
          .capacity = capacity,
          .gathers = !has_tiles || capacity.block_size % kBlockStepKeys != 0,
          .kv_stationary = has_many_key_tiles(shape, gpu)};
}

}  // namespace tangram::schedule
