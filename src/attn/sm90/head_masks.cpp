// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks of head groups, prepared so that one launch walks all of them.

#include <utility>

#include "attn/sm90/backward/device_work_list.hpp"
#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/prepared_mask.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "attn/sm90/tiles_to_gather.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/head_lists.hpp"

namespace tangram {
namespace {

sm90::ForwardLists upload(const schedule::HeadLists& lists, sm90::ForwardWorkTiles gathered_work_tiles) {
  sm90::ForwardLists uploaded;
  uploaded.num_work_tiles = static_cast<int32_t>(lists.work_tiles.size());
  uploaded.work_tiles = uploaded.arrays.add(lists.work_tiles);
  uploaded.work_tile_groups = uploaded.arrays.add(lists.work_tile_groups);
  uploaded.runs = uploaded.arrays.add(lists.runs);
  uploaded.intervals = uploaded.arrays.add(lists.intervals);
  uploaded.gathered = lists.gathered;
  uploaded.aligned = gathered_work_tiles == sm90::ForwardWorkTiles::kAligned;
  uploaded.many_runs =
      !uploaded.gathered && lists.part_tiles.empty() && sm90::has_many_runs(lists.work_tiles.size(), lists.runs.size());
  uploaded.groups = uploaded.arrays.add(lists.key_groups);
  uploaded.counters = uploaded.arrays.add_zeros<int32_t>(2);
  uploaded.part_rows = uploaded.arrays.add(lists.part_rows);
  uploaded.tiles = uploaded.arrays.add(lists.part_tiles);
  uploaded.part_heads = uploaded.arrays.add(lists.part_heads);
  uploaded.num_part_tiles = static_cast<int32_t>(lists.part_tiles.size());
  uploaded.num_part_rows = lists.num_part_rows;
  uploaded.arrays.upload();
  return uploaded;
}

}  // namespace

std::unique_ptr<PreparedMask> Sm90Backend::prepare_head_masks(std::span<const std::span<const AttnSlice>> slices,
                                                              const AttnShape& shape,
                                                              std::span<const TileList> tiles) const {
  constexpr const char* kFunction = "Sm90Backend::prepare_head_masks";
  const TileShape tile = *tile_shape(shape);
  require_hopper();
  require(slices.size() > 1 && shape.num_heads_kv % static_cast<int64_t>(slices.size()) == 0,
          "{}: needs two masks or more, as many as divide num_heads_kv (got {} masks, num_heads_kv={})", kFunction,
          slices.size(), shape.num_heads_kv);
  require(tiles.empty() || tiles.size() == slices.size(),
          "{}: needs a tile list for each of {} masks, or none (got {})", kFunction, slices.size(), tiles.size());
  auto mask = std::make_unique<sm90::Sm90Mask>();
  mask->shape = shape;
  for (const std::span<const AttnSlice> of_group : slices) {
    mask->head_slices.emplace_back(of_group.begin(), of_group.end());
  }
  if (tiles.empty()) return mask;  // for backward() alone
  for (const TileList& list : tiles) sm90::check_tiles(kFunction, list, shape, tile);
  const sm90::TilesToGather gatherable(tiles, slices, shape);
  const int64_t groups = shape.num_heads_q / sm90::packed_heads(shape, sm90::plain_work_tiles(shape));
  mask->forward = upload(schedule::join_tiles(tiles, shape, groups, sm90::gpu_of_current_device(), gatherable.view()),
                         gatherable.work_tiles());
  if (mask->forward->in_parts()) {
    sm90::load_merge(shape.dtype == DType::kFloat16, shape.head_dim, shape.head_dim_v);
  }
  return mask;
}

void Sm90Backend::prepare_backward_head_masks(PreparedMask& mask, std::span<const TileList> transposed_tiles,
                                              BackwardCalls calls) const {
  constexpr const char* kFunction = "Sm90Backend::prepare_backward_head_masks";
  sm90::Sm90Mask& prepared = sm90::as_sm90(mask);
  require(!prepared.head_slices.empty() && transposed_tiles.size() == prepared.head_slices.size(),
          "{}: needs a mask of prepare_head_masks() and a list for each of its {} masks (got {})", kFunction,
          prepared.head_slices.size(), transposed_tiles.size());
  for (const TileList& tiles : transposed_tiles) sm90::check_transposed_tiles(kFunction, prepared.shape, tiles);
  const cuda::AllowAllocationDuringCapture allow;  // as in prepare_backward()
  const std::vector<std::span<const AttnSlice>> slices(prepared.head_slices.begin(), prepared.head_slices.end());
  const schedule::WorkList work =
      schedule::join_work(transposed_tiles, slices, prepared.shape, sm90::gpu_of_current_device(), calls);
  prepared.set_backward(std::make_unique<sm90::backward::DeviceWorkList>(work, prepared.shape), calls);
  if (calls != BackwardCalls::kDeterministic && prepared.backward_groups == nullptr) {
    prepared.backward_groups =
        sm90::query_backward::choose_groups(slices, prepared.shape, sm90::query_backward::kv_stationary_steps(work));
  }
}

}  // namespace tangram
