// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Prepares masks for both passes. Calls with them: sm90_forward.cpp, sm90_backward.cpp; masks set later:
// sm90_buffers.cpp; masks of head groups: head_masks.cpp.

#include "attn/sm90/sm90_backend.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "attn/sm90/backward/device_work_list.hpp"
#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/prepared_mask.hpp"
#include "attn/sm90/query_backward/device_group_list.hpp"
#include "attn/sm90/tiles_to_gather.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/split_or_gather.hpp"
#include "schedule/tile_list.hpp"

namespace tangram {
namespace {

using sm90::ForwardLists;
using sm90::ForwardWorkTiles;
using sm90::packed_heads;
using sm90::plain_work_tiles;
using sm90::Sm90Mask;
using sm90::work_tile_rows;

void check_shape(const AttnShape& shape) {
  require(shape.dtype == DType::kBFloat16 || shape.dtype == DType::kFloat16,
          "Sm90Backend: dtype must be bfloat16 or float16 (got dtype={})", to_string(shape.dtype));
  require(sm90::find_shape_class(shape.head_dim, shape.head_dim_v) != nullptr,
          "Sm90Backend: head_dim and head_dim_v must be multiples of 8 up to {} (got head_dim={}, head_dim_v={})",
          sm90::kLargestHeadDim, shape.head_dim, shape.head_dim_v);
  require(shape.num_heads_q > 0 && shape.num_heads_kv > 0 && shape.num_heads_q % shape.num_heads_kv == 0,
          "Sm90Backend: num_heads_kv must divide num_heads_q (got num_heads_q={}, num_heads_kv={})", shape.num_heads_q,
          shape.num_heads_kv);
}

ForwardLists upload_lists(const schedule::SplitOrGathered& chosen, ForwardWorkTiles gathered_work_tiles) {
  ForwardLists lists;
  const auto& [tiles, parts, gathered] = chosen;
  const TileList& scheduled = parts ? parts->list : *tiles;
  lists.gathered = gathered.has_value();
  lists.aligned = gathered_work_tiles == ForwardWorkTiles::kAligned;
  lists.many_runs = !gathered && !parts && sm90::has_many_runs(scheduled.work_tiles.size(), scheduled.runs.size());
  const std::vector<MaskTile>& work_tiles = gathered ? gathered->work_tiles : scheduled.work_tiles;
  const std::vector<TileRange>& runs = gathered ? gathered->runs : scheduled.runs;
  lists.num_work_tiles = static_cast<int32_t>(work_tiles.size());
  for (const MaskTile& work_tile : work_tiles) {
    const int64_t steps = schedule::work_tile_steps(work_tile, runs, scheduled.shape.block_n);
    lists.total_steps += steps;
    lists.longest_steps = std::max(lists.longest_steps, steps);
  }
  lists.work_tiles = lists.arrays.add(work_tiles);
  lists.runs = lists.arrays.add(runs);
  if (gathered) lists.groups = lists.arrays.add(gathered->groups);
  lists.intervals = lists.arrays.add(scheduled.intervals);
  lists.counters = lists.arrays.add_zeros<int32_t>(2);
  if (parts) {
    lists.part_rows = lists.arrays.add(parts->first_rows);
    lists.tiles = lists.arrays.add(parts->tiles);
    lists.num_part_tiles = static_cast<int32_t>(parts->tiles.size());
    lists.num_part_rows = parts->num_rows;
  }
  lists.arrays.upload();
  return lists;
}

}  // namespace

std::optional<TileShape> Sm90Backend::tile_shape(const AttnShape& shape) const {
  check_shape(shape);
  const ForwardWorkTiles work_tiles = plain_work_tiles(shape);
  return TileShape{work_tile_rows(shape, work_tiles) / packed_heads(shape, work_tiles),
                   sm90::forward_tile_keys(shape.head_dim, shape.head_dim_v, false, work_tiles)};
}

std::optional<TileShape> Sm90Backend::backward_tile_shape(const AttnShape& shape) const {
  static_cast<void>(tile_shape(shape));  // checks the shape
  return sm90::backward::kTileShape;
}

std::unique_ptr<PreparedMask> Sm90Backend::prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                                   const TileList* tiles) const {
  const std::optional<TileShape> tile = tile_shape(shape);
  require_hopper();
  auto mask = std::make_unique<Sm90Mask>();
  mask->shape = shape;
  mask->slices.assign(slices.begin(), slices.end());
  if (tiles == nullptr) return mask;  // for backward() alone
  sm90::check_tiles("Sm90Backend::prepare", *tiles, shape, *tile);
  const int64_t groups = shape.num_heads_q / packed_heads(shape, plain_work_tiles(shape));
  const sm90::TilesToGather gatherable({tiles, 1}, {&slices, 1}, shape);
  const GpuModel gpu = sm90::gpu_of_current_device();
  mask->forward = upload_lists(schedule::split_or_gather({tiles, 1}, shape, groups, gpu, gatherable.view())[0],
                               gatherable.work_tiles());
  if (mask->forward->in_parts()) {
    sm90::load_merge(shape.dtype == DType::kFloat16, shape.head_dim, shape.head_dim_v);
  }
  return mask;
}

void Sm90Backend::prepare_backward(PreparedMask& mask, const TileList& transposed_tiles, BackwardCalls calls) const {
  Sm90Mask& prepared = sm90::as_sm90(mask);
  const AttnShape& shape = prepared.shape;
  require(prepared.head_slices.empty(),
          "Sm90Backend::prepare_backward: needs a mask of prepare() (got one of prepare_head_masks())");
  sm90::check_transposed_tiles("Sm90Backend::prepare_backward", shape, transposed_tiles);
  const GpuModel gpu = sm90::gpu_of_current_device();
  const cuda::AllowAllocationDuringCapture allow;  // the first backward call of a mask may be a captured one
  const schedule::WorkList work =
      schedule::make_work_list(transposed_tiles, prepared.slices, shape, gpu, prepared.awaited_keys, {.calls = calls});
  prepared.set_backward(std::make_unique<sm90::backward::DeviceWorkList>(work, shape), calls);
  if (calls != BackwardCalls::kDeterministic && prepared.awaited_keys.empty() && prepared.backward_groups == nullptr) {
    const std::span<const AttnSlice> slices(prepared.slices);
    prepared.backward_groups =
        sm90::query_backward::choose_groups({&slices, 1}, shape, sm90::query_backward::kv_stationary_steps(work));
  }
}

bool Sm90Backend::prepare_gathered_backward(PreparedMask& mask) const {
  Sm90Mask& prepared = sm90::as_sm90(mask);
  if (prepared.is_buffer() || !prepared.awaited_keys.empty()) return false;
  if (prepared.backward_groups != nullptr) return true;
  std::vector<std::span<const AttnSlice>> slices(prepared.head_slices.begin(), prepared.head_slices.end());
  if (slices.empty()) slices.emplace_back(prepared.slices);
  const cuda::AllowAllocationDuringCapture allow;  // as in prepare_backward()
  prepared.backward_groups = sm90::query_backward::choose_groups_early(slices, prepared.shape);
  return prepared.backward_groups != nullptr;
}

// Only the kernels that keys rest for wait for keys, or read them elsewhere.
bool Sm90Backend::wants_all_keys(std::span<const AttnSlice> slices, const AttnShape& shape) const {
  return sm90::query_backward::is_scattered(slices, shape);
}

void Sm90Backend::prepare_ready_flags(PreparedMask& mask, std::span<const KeyReadyFlag> ready_flags) const {
  Sm90Mask& prepared = sm90::as_sm90(mask);
  prepared.awaited_keys = schedule::AwaitedKeys(ready_flags, prepared.shape.seqlen_k);
  prepared.awaited_keys_on_device = sm90::DeviceAwaitedKeys(prepared.awaited_keys);
}

void Sm90Backend::prepare_local_kv(PreparedMask& mask, std::span<const LocalKvRange> local_ranges) const {
  Sm90Mask& prepared = sm90::as_sm90(mask);
  prepared.local_ranges = sm90::DeviceLocalKvRanges(local_ranges, prepared.shape.seqlen_k);
}

int64_t Sm90Backend::local_kv_table_bytes(int64_t seqlen_k) const {
  const int64_t granules = (seqlen_k + sm90::kLocalKvGranule - 1) / sm90::kLocalKvGranule;
  return granules * static_cast<int64_t>(sizeof(sm90::GranuleRange));
}

void Sm90Backend::write_local_kv_table(std::span<const LocalKvRange> local_ranges, int64_t seqlen_k,
                                       std::byte* to) const {
  const std::vector<sm90::GranuleRange> table = sm90::local_ranges_of_granules(local_ranges, seqlen_k);
  std::copy(table.begin(), table.end(), reinterpret_cast<sm90::GranuleRange*>(to));
}

}  // namespace tangram
