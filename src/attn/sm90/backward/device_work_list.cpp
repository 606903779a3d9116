// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/backward/device_work_list.hpp"

namespace tangram::sm90::backward {

namespace {

/// NOTE [capacity] Masks of one shape ask for few different sizes of workspace, so that an allocator finds the block of
/// one mask for the next. Tiles begin with documents: as many as rows fill, an eighth and 16 are enough for most masks.
size_t tile_capacity(size_t num_tiles, const AttnShape& shape) {
  const auto filled = static_cast<size_t>((shape.seqlen_q + kTileShape.block_n - 1) / kTileShape.block_n);
  const size_t more = filled / 8 + 16;
  size_t capacity = filled + more;
  while (capacity < num_tiles) capacity += more;
  return num_tiles == 0 ? 0 : capacity;
}

/// For a sixteenth of all tiles of keys, of which most masks have fewer in pieces, a quarter, or all.
size_t slab_capacity(size_t num_slabs, const AttnShape& shape) {
  if (shape.num_heads_q == shape.num_heads_kv) return 0;  // an item has one head
  const auto filled = static_cast<size_t>((shape.seqlen_k + kTileShape.block_m - 1) / kTileShape.block_m);
  const auto heads = static_cast<size_t>(shape.num_heads_kv);
  const size_t more = (filled / 4 + 16) * heads, all = filled * heads + more;
  for (const size_t share : {16, 4}) {
    if (num_slabs <= all / share) return all / share;
  }
  size_t capacity = all;
  while (capacity < num_slabs) capacity += more;
  return capacity;
}

}  // namespace

DeviceWorkList::DeviceWorkList(const schedule::WorkList& work, const AttnShape& shape)
    : num_items_(static_cast<int32_t>(work.items.size())),
      num_deterministic_items_(
          static_cast<int32_t>(work.deterministic_items.empty() ? work.items.size() : work.deterministic_items.size())),
      num_q_tiles_(static_cast<int32_t>(work.q_tiles.size()) / work.num_masks),
      heads_per_mask_(work.num_masks == 1 ? 0 : shape.num_heads_q / work.num_masks),
      num_slabs_(work.num_slabs),
      call_(tile_capacity(static_cast<size_t>(num_q_tiles_), shape),
            slab_capacity(static_cast<size_t>(work.num_slabs), shape), shape, work.num_masks),
      walk_(work.walk),
      deterministic_walk_(work.deterministic_walk),
      zeroed_sums_(work.zeroed_sums) {
  items_ = lists_.add(work.items);
  deterministic_items_ = lists_.add(work.deterministic_items);
  runs_ = lists_.add(work.runs);
  run_tiles_ = lists_.add(work.run_tiles);
  q_tiles_ = lists_.add(work.q_tiles);
  intervals_ = lists_.add(work.intervals);
  covered_queries_ = lists_.add(work.covered_queries);
  turn_segments_ = lists_.add(work.turn_segments);
  lists_.upload();
  workspace_bytes_ = call_.bytes();
}

void DeviceWorkList::fill(Params& params, EdgeParams& edge, bool deterministic, void* workspace) const {
  call_.place(params, edge, workspace);
  params.items = lists_.at<Item>(deterministic && deterministic_items_.bytes > 0 ? deterministic_items_ : items_);
  params.runs = lists_.at<TileRun>(runs_);
  params.run_tiles = lists_.at<RunTiles>(run_tiles_);
  params.q_tiles = edge.q_tiles = lists_.at<QueryTile>(q_tiles_);
  params.intervals = lists_.at<RowInterval>(intervals_);
  params.covered_queries = edge.covered_queries = lists_.at<uint64_t>(covered_queries_);
  params.turn_segments = lists_.at<TurnSegment>(turn_segments_);
  params.zeroed_sums = edge.zeroed_sums = zeroed_sums_;
  params.num_items = static_cast<int32_t>(num_items(deterministic));
  params.num_q_tiles = schedule::slab_stride(num_q_tiles_, heads_per_mask_);
  edge.num_q_tiles = num_q_tiles_;
  edge.heads_per_mask = heads_per_mask_;
  edge.num_slabs = call_.num_kernels * num_slabs_;
  params.walk = deterministic ? deterministic_walk_ : walk_;
}

}  // namespace tangram::sm90::backward
