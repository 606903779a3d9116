// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/work_list.hpp"

namespace tangram::gpu {
namespace {

/// NOTE [capacity] Masks of one shape request few different workspace sizes, so that an allocator reuses the block of
/// one mask for the next. Tiles begin with documents: as many as rows fill, an eighth and 16 are enough for most masks.
size_t tile_capacity(size_t num_tiles, const AttnShape& shape, const TileShape& tile) {
  const auto filled = static_cast<size_t>((shape.seqlen_q + tile.block_n - 1) / tile.block_n);
  const size_t more = filled / 8 + 16;
  size_t capacity = filled + more;
  while (capacity < num_tiles) capacity += more;
  return num_tiles == 0 ? 0 : capacity;
}

/// Accumulator tiles of a workspace: for a sixteenth of all key tiles, which is more than most masks split, a quarter,
/// or all.
size_t accum_tile_capacity(size_t num_accum_tiles, const AttnShape& shape, const TileShape& tile) {
  if (shape.num_heads_q == shape.num_heads_kv) return 0;  // a work tile has one head
  const auto filled = static_cast<size_t>((shape.seqlen_k + tile.block_m - 1) / tile.block_m);
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

DeviceWorkList::DeviceWorkList(const schedule::WorkList& work, const AttnShape& shape,
                               const schedule::KernelTable& kernels) {
  const auto num_q_tiles = static_cast<int32_t>(work.q_tiles.size()) / work.num_masks;
  sizes_ = {tile_capacity(static_cast<size_t>(num_q_tiles), shape, kernels.backward),
            accum_tile_capacity(static_cast<size_t>(work.num_accum_tiles), shape, kernels.backward), shape, kernels,
            work.num_masks};
  workspace_bytes_ = sizes_.bytes();
  const cuda::PackedArray work_tiles = lists_.add(work.work_tiles);
  const cuda::PackedArray deterministic = lists_.add(work.deterministic_work_tiles);
  const cuda::PackedArray runs = lists_.add(work.runs), run_tiles = lists_.add(work.run_tiles);
  const cuda::PackedArray q_tiles = lists_.add(work.q_tiles), intervals = lists_.add(work.intervals);
  const cuda::PackedArray covered = lists_.add(work.covered_queries), segments = lists_.add(work.dq_order_segments);
  lists_.upload();
  BackwardView& of = default_;
  of.work_tiles = lists_.at<schedule::WorkTile>(work_tiles);
  of.num_work_tiles = static_cast<int32_t>(work.work_tiles.size());
  of.runs = lists_.at<TileRange>(runs);
  of.run_tiles = lists_.at<schedule::RangeQueryTiles>(run_tiles);
  of.q_tiles = lists_.at<schedule::QueryTile>(q_tiles);
  of.intervals = lists_.at<RowInterval>(intervals);
  of.covered_queries = of.covered_queries_pre_post = lists_.at<uint64_t>(covered);
  of.dq_order_segments = lists_.at<schedule::DqOrderSegment>(segments);
  of.num_q_tiles = num_q_tiles;
  of.heads_per_mask = work.num_masks == 1 ? 0 : shape.num_heads_q / work.num_masks;
  of.q_tile_stride = schedule::accum_tile_stride(num_q_tiles, of.heads_per_mask);
  of.num_accum_tiles = kernels.backward_kernels * work.num_accum_tiles;
  of.walk = work.walk;
  of.zeroed_sums = work.zeroed_sums;
  deterministic_ = default_;
  deterministic_.walk = work.deterministic_walk;
  if (!work.deterministic_work_tiles.empty()) {
    deterministic_.work_tiles = lists_.at<schedule::WorkTile>(deterministic);
    deterministic_.num_work_tiles = static_cast<int32_t>(work.deterministic_work_tiles.size());
  }
  for (BackwardView* view : {&default_, &deterministic_}) view->most_work_tiles = view->num_work_tiles;
}

BackwardView DeviceWorkList::view(bool deterministic, void* workspace) const {
  BackwardView view = deterministic ? deterministic_ : default_;
  view.scratch = sizes_.place(workspace);
  return view;
}

}  // namespace tangram::gpu
