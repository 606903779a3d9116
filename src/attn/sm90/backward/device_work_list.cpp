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
size_t accum_tile_capacity(size_t num_accum_tiles, const AttnShape& shape) {
  if (shape.num_heads_q == shape.num_heads_kv) return 0;  // a work tile has one head
  const auto filled = static_cast<size_t>((shape.seqlen_k + kTileShape.block_m - 1) / kTileShape.block_m);
  const auto heads = static_cast<size_t>(shape.num_heads_kv);
  const size_t more = (filled / 4 + 16) * heads, all = filled * heads + more;
  for (const size_t share : {16, 4}) {
    if (num_accum_tiles <= all / share) return all / share;
  }
  size_t capacity = all;
  while (capacity < num_accum_tiles) capacity += more;
  return capacity;
}

}  // namespace

DeviceWorkList::DeviceWorkList(const schedule::WorkList& work, const AttnShape& shape)
    : num_work_tiles_(static_cast<int32_t>(work.work_tiles.size())),
      num_deterministic_work_tiles_(static_cast<int32_t>(
          work.deterministic_work_tiles.empty() ? work.work_tiles.size() : work.deterministic_work_tiles.size())),
      num_q_tiles_(static_cast<int32_t>(work.q_tiles.size()) / work.num_masks),
      heads_per_mask_(work.num_masks == 1 ? 0 : shape.num_heads_q / work.num_masks),
      num_accum_tiles_(work.num_accum_tiles),
      call_(tile_capacity(static_cast<size_t>(num_q_tiles_), shape),
            accum_tile_capacity(static_cast<size_t>(work.num_accum_tiles), shape), shape, work.num_masks),
      walk_(work.walk),
      deterministic_walk_(work.deterministic_walk),
      zeroed_sums_(work.zeroed_sums) {
  work_tiles_ = lists_.add(work.work_tiles);
  deterministic_work_tiles_ = lists_.add(work.deterministic_work_tiles);
  runs_ = lists_.add(work.runs);
  run_tiles_ = lists_.add(work.run_tiles);
  q_tiles_ = lists_.add(work.q_tiles);
  intervals_ = lists_.add(work.intervals);
  covered_queries_ = lists_.add(work.covered_queries);
  turn_segments_ = lists_.add(work.dq_order_segments);
  lists_.upload();
  workspace_bytes_ = call_.bytes();
}

void DeviceWorkList::fill(Params& params, PrePostParams& pre_post, bool deterministic, void* workspace) const {
  call_.place(params, pre_post, workspace);
  params.work_tiles = lists_.at<WorkTile>(
      deterministic && deterministic_work_tiles_.bytes > 0 ? deterministic_work_tiles_ : work_tiles_);
  params.runs = lists_.at<TileRange>(runs_);
  params.run_tiles = lists_.at<RangeQueryTiles>(run_tiles_);
  params.q_tiles = pre_post.q_tiles = lists_.at<QueryTile>(q_tiles_);
  params.intervals = lists_.at<RowInterval>(intervals_);
  params.covered_queries = pre_post.covered_queries = lists_.at<uint64_t>(covered_queries_);
  params.dq_order_segments = lists_.at<DqOrderSegment>(turn_segments_);
  params.zeroed_sums = pre_post.zeroed_sums = zeroed_sums_;
  params.num_work_tiles = static_cast<int32_t>(num_work_tiles(deterministic));
  params.num_q_tiles = schedule::accum_tile_stride(num_q_tiles_, heads_per_mask_);
  pre_post.num_q_tiles = num_q_tiles_;
  pre_post.heads_per_mask = heads_per_mask_;
  pre_post.num_accum_tiles = call_.num_kernels * num_accum_tiles_;
  params.walk = deterministic ? deterministic_walk_ : walk_;
}

}  // namespace tangram::sm90::backward
