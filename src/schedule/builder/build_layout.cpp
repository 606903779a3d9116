// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/builder/build_layout.hpp"

#include <algorithm>

#include "core/rounding.hpp"
#include "schedule/heuristic_tile_schedule.hpp"

namespace tangram::schedule::builder {

BuildLayout::BuildLayout(const ImageLayout& image, const AttnShape& shape, const TileShape& forward,
                         const TileShape& backward, const MaskCapacity& capacity, const GpuModel& gpu)
    : image_(image) {
  SortBuild& build = build_;
  build.has_forward = capacity.passes != AttnPasses::kBackward;
  build.has_backward = capacity.passes != AttnPasses::kForward;
  build.max_slices = static_cast<int32_t>(capacity.max_slices == 0 ? capacity.max_documents : capacity.max_slices);
  build.num_heads_q = shape.num_heads_q;
  build.num_heads_kv = shape.num_heads_kv;
  build.multiprocessors = gpu.multiprocessors;
  const TileSchedule cached = l2_tile_schedule(shape, gpu);
  build.cached = {cached.head_splits,
                  cached.heads_in_l2 == 0 ? shape.num_heads_kv * cached.head_splits : cached.heads_in_l2};
  build.deterministic = capacity.deterministic;
  build.heads_innermost = scatters_heads_inside(shape.head_dim);
  build.scattered_pieces = scattered_pieces(shape.seqlen_q, shape.head_dim, shape.num_heads_q / shape.num_heads_kv,
                                            gpu.l2_bytes, gpu.has_slow_memory());
  build.max_q_tiles = static_cast<int32_t>(image.num_q_tiles());
  build.work_tiles_offset = static_cast<int64_t>(image.backward_work_tiles());
  build.turns.max_segments = static_cast<int32_t>(std::min<int64_t>(image.num_turn_segments(), INT32_MAX));
  const auto pass = [&](const TileShape& tile, int64_t rows, int64_t keys, int64_t tiles, int64_t runs) {
    Pass result;
    result.num_rows = static_cast<int32_t>(rows);
    result.num_keys = static_cast<int32_t>(keys);
    result.block_rows = tile.block_m;
    result.block_keys = tile.block_n;
    result.anew_every = tile.anew_every;
    result.max_tiles = static_cast<int32_t>(tiles);
    result.max_runs = static_cast<int32_t>(runs);
    // Pieces of a run have rows of their own: all but two begin or end inside of the tile, where their slice does.
    result.max_pieces = tiles == 0 ? 0 : static_cast<int32_t>(2 * runs + 2 * build.max_slices);
    return result;
  };
  build.passes[0] =
      pass(forward, shape.seqlen_q, shape.seqlen_k, image.num_forward_work_tiles(), image.num_forward_runs());
  build.passes[1] = pass(backward, shape.seqlen_k, shape.seqlen_q, image.num_key_tiles(), image.num_backward_runs());
  for (int side = 0; side < 2; ++side) {
    const int64_t last_row = std::max<int64_t>((side == 0 ? shape.seqlen_q : shape.seqlen_k) - 1, 0);
    while (last_row >> build.sorting.shift[side] >= kBuckets) ++build.sorting.shift[side];
  }
  place(build, [&](auto& /*pointer*/, int64_t count, size_t size) {
    bytes_ = round_up(bytes_, 256) + static_cast<size_t>(count) * size;
  });
  bytes_ = round_up(bytes_, 256);
}

template <class Place>
void BuildLayout::place(SortBuild& build, const Place& place) const {
  const auto take = [&](auto*& pointer, int64_t count) { place(pointer, count, sizeof(*pointer)); };
  const int64_t slices = build.max_slices;
  take(build.state, 1);
  for (Pass& pass : build.passes) {
    take(pass.slices, slices);
    take(pass.ends, slices);
    take(pass.begins, pass.max_tiles + 1);
    take(pass.tiles, pass.max_tiles);
    take(pass.costs, pass.max_tiles);
    take(pass.first_run, pass.max_tiles + 1);
    take(pass.first_interval, pass.max_tiles + 1);
    take(pass.unsorted, pass.max_pieces);
    take(pass.head_splits, pass.max_pieces);
    take(pass.next, pass.max_pieces);
    take(pass.open_runs, pass.max_pieces);
  }
  take(build.num_candidates, 2);
  take(build.given, slices);
  const int64_t q_tiles = build.max_q_tiles;
  Sorting& sorting = build.sorting;
  take(sorting.index, slices);
  for (int side = 0; side < 2; ++side) {
    take(sorting.first[side], kBuckets + 1);
    take(sorting.num_placed[side], kBuckets);
    take(sorting.ends_before[side], kBuckets);
    take(sorting.members[side], slices);
    take(build.is_apart[side], slices);
    take(build.candidates[side], slices + 1);
    take(build.tiles_before[side], slices + 2);
  }
  take(build.q_begins, q_tiles + 1);
  take(build.inside, q_tiles + 2);
  take(build.is_begin, q_tiles + 2);
  take(build.longest, q_tiles + 2);
  take(build.group_place, q_tiles + 2);
  take(build.shares, build.passes[1].max_tiles);
  Turns& turns = build.turns;
  if (turns.max_segments == 0) return;
  take(turns.scheduled, build.passes[1].max_runs);
  take(turns.first_scheduled, build.passes[1].max_tiles);
  take(turns.first_segment, build.passes[1].max_runs + 1);
  take(turns.num_listed, build.passes[1].max_runs);
  take(turns.listed, turns.max_segments);
}

SortBuild BuildLayout::at(std::byte* memory, std::byte* image) const {
  SortBuild build = build_;
  size_t end = 0;
  place(build, [&](auto& pointer, int64_t count, size_t size) {
    end = round_up(end, 256);
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory + end);
    end += static_cast<size_t>(count) * size;
  });
  const auto in_image = [&](auto*& pointer, size_t offset) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(image + offset);
  };
  in_image(build.mask_info, image_.mask_info());
  in_image(build.q_tiles, image_.q_tiles());
  in_image(build.covered_queries, image_.covered_queries());
  in_image(build.forward_work_tiles, image_.forward_work_tiles());
  in_image(build.passes[0].runs, image_.forward_runs());
  in_image(build.passes[1].runs, image_.backward_runs());
  in_image(build.run_tiles, image_.run_tiles());
  in_image(build.work_tiles, image_.backward_work_tiles());
  in_image(build.intervals, image_.intervals());
  in_image(build.turns.segments, image_.dq_order_segments());
  return build;
}

size_t place_blocks(Blocks& blocks, const AttnShape& shape, std::byte* memory) {
  const auto lines_of = [&](int64_t rows) { return static_cast<int32_t>((rows + blocks.block - 1) / blocks.block); };
  const int32_t counts[2] = {lines_of(shape.seqlen_q), lines_of(shape.seqlen_k)};
  blocks.num_key_blocks = counts[1];
  size_t end = 0;
  const auto take = [&](auto*& pointer, int64_t count) {
    if (memory != nullptr) pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory + end);
    end = round_up(end + static_cast<size_t>(count) * sizeof(*pointer), 256);
  };
  for (int side = 0; side < 2; ++side) {
    BlockLines& lines = blocks.lines[side];
    lines.num_lines = counts[side];
    lines.words_per_line = (counts[1 - side] + 31) / 32;
    take(lines.words, int64_t{lines.num_lines} * lines.words_per_line);
    take(lines.num_runs, lines.num_lines + 1);
    take(lines.is_apart, lines.num_lines);
  }
  return end;
}

}  // namespace tangram::schedule::builder
