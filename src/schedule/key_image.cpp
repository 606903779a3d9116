// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/key_image.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/require.hpp"
#include "core/rounding.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/tile_schedule_heuristic.hpp"

namespace tangram::schedule {
namespace {

constexpr size_t kAlignment = 256;
// A key tile of a host-built mask has one or two runs with intervals, those on diagonals.
constexpr int64_t kIntervalsPerTile = 2 * kKeyTileRows;

int64_t tiles_of_keys(const AttnShape& shape) { return (shape.seqlen_k + kKeyTileRows - 1) / kKeyTileRows; }

/// Head splits as for host-built masks, whichever schedule is chosen. More if a multiprocessor has few work tiles of
/// unequal length, and if they wait for memory.
int32_t pieces_of(const AttnShape& shape, int64_t num_tiles, const GpuModel& gpu) {
  constexpr int64_t kWorkTilesEach = 8;
  const int group = shape.num_heads_q / shape.num_heads_kv;
  const auto [fewest, most] =
      scattered_pieces(shape.seqlen_q, shape.head_dim, group, gpu.l2_bytes, gpu.has_slow_memory());
  int32_t head_splits = std::min(2 * fewest, most);
  if (group % head_splits != 0) head_splits = 1;
  const auto are_few = [&] {
    return num_tiles * shape.num_heads_kv * head_splits < kWorkTilesEach * gpu.multiprocessors;
  };
  while (are_few() && group % (2 * head_splits) == 0) head_splits *= 2;
  return head_splits;
}

}  // namespace

bool has_many_key_tiles(const AttnShape& shape, const GpuModel& gpu) {
  constexpr int64_t kTilesEach = 3;  // 8K rows and 8 K/V heads have 3.9, 4K 1.9
  return tiles_of_keys(shape) * shape.num_heads_kv >= kTilesEach * gpu.multiprocessors;
}

bool sees_whole_query_tiles(const WorkList& work) {
  for (size_t i = 0; i < work.covered_queries.size(); ++i) {
    const int32_t rows = work.q_tiles[i].row_end - work.q_tiles[i].row_begin;
    const uint64_t all = rows >= 64 ? ~uint64_t{0} : (uint64_t{1} << rows) - 1, seen = work.covered_queries[i] & all;
    if (seen != 0 && seen != all) return false;
  }
  return true;
}

KeyImage::KeyImage(const AttnShape& shape, const MaskCapacity& capacity, const GpuModel& gpu, size_t begin)
    : shape_(shape), capacity_(capacity), end_(begin) {
  const auto num_tiles = static_cast<int32_t>(tiles_of_keys(shape));
  schedule_ = {num_tiles, pieces_of(shape, num_tiles, gpu), shape.num_heads_q, shape.num_heads_kv,
               capacity.head_groups};
  require(int64_t{num_tiles} * shape.num_heads_kv * schedule_.head_splits < INT32_MAX,
          "MaskBuffer: tiles of keys, of all K/V heads and their pieces, must stay below 2^31 (got {} tiles, "
          "num_heads_kv={}, {} pieces)",
          num_tiles, shape.num_heads_kv, schedule_.head_splits);
  // Columns of causal blocks all reach the end.
  walk_ = {.descending = true, .heads_innermost = scatters_heads_inside(shape.head_dim)};
  num_q_tiles_ = static_cast<int32_t>((shape.seqlen_q + kKeyStepQueries - 1) / kKeyStepQueries);
  max_runs_ = capacity.max_slices * (capacity.block_size / kKeyTileRows);  // each block may be one, in all its tiles
  max_intervals_ = kIntervalsPerTile * num_tiles * capacity.head_groups;
  const auto take = [&]<class T>(int64_t count, T) {
    const size_t offset = round_up(end_, kAlignment);
    end_ = offset + static_cast<size_t>(count) * sizeof(T);
    return offset;
  };
  work_tiles_ = take(schedule_.num_work_tiles(), WorkTile{});
  runs_ = take(max_runs_, TileRange{});
  run_tiles_ = take(max_runs_, RangeQueryTiles{});
  q_tiles_ = take(num_q_tiles_, QueryTile{});
}

KeyLists KeyImage::make(std::span<const AttnSlice> slices) const {
  TileList tiles =
      transposed_tile_list(slices, shape_.seqlen_q, shape_.seqlen_k, {kKeyTileRows, kKeyStepQueries, false});
  for (int32_t tile = 0; tile < num_q_tiles_; ++tile) tiles.key_tiles.push_back(tile * kKeyStepQueries);
  tiles.key_tiles.push_back(static_cast<int32_t>(shape_.seqlen_q));
  WorkList work =
      make_work_list(tiles, slices, shape_, {}, {}, {.calls = BackwardCalls::kDefault, .given = TileSchedule{}});
  require(sees_whole_query_tiles(work),
          "MaskBuffer::set: a mask of blocks must be such that all queries of a tile of {} see something, or none (got "
          "another)",
          kKeyStepQueries);
  KeyLists lists;
  const int32_t group = shape_.num_heads_q / shape_.num_heads_kv;
  std::ranges::copy_if(work.work_tiles, std::back_inserter(lists.tiles),
                       [](const WorkTile& work_tile) { return work_tile.kv_head == 0; });
  std::ranges::sort(lists.tiles, {}, &WorkTile::row_begin);
  TANGRAM_ASSERT(lists.tiles.size() == static_cast<size_t>(schedule_.num_tiles));
  for (const WorkTile& work_tile : lists.tiles) lists.visits.push_back(work_tile.num_steps / group);
  lists.runs = std::move(work.runs);
  lists.run_tiles = std::move(work.run_tiles);
  lists.intervals = std::move(work.intervals);
  return lists;
}

void KeyImage::check(std::span<const KeyLists* const> masks) const {
  int64_t runs = 0, intervals = 0;
  for (const KeyLists* mask : masks) {
    runs += static_cast<int64_t>(mask->runs.size());
    intervals += static_cast<int64_t>(mask->intervals.size());
  }
  require(runs <= max_runs_,
          "MaskBuffer::set: the mask must fit the buffer, a larger max_slices makes room (got {} runs of queries, room "
          "for {}, "
          "max_slices={})",
          runs, max_runs_, capacity_.max_slices);
  require(intervals <= max_intervals_,
          "MaskBuffer::set: a mask of blocks must have few keys with queries of their own (got {} in tiles of {}, room "
          "for {})",
          intervals, kKeyTileRows, max_intervals_);
}

size_t KeyImage::write(std::byte* to, std::span<const KeyLists* const> masks, size_t intervals) const {
  const auto array = [&]<class T>(size_t offset, T) { return reinterpret_cast<T*>(to + offset); };
  WorkTile* const work_tiles = array(work_tiles_, WorkTile{});
  int32_t num_runs = 0;
  size_t end = intervals;
  for (int32_t m = 0; m < static_cast<int32_t>(masks.size()); ++m) {
    const KeyLists& mask = *masks[static_cast<size_t>(m)];
    const auto first_interval = static_cast<int32_t>(end / sizeof(RowInterval));
    std::ranges::copy(mask.intervals, array(end, RowInterval{}));
    end += mask.intervals.size() * sizeof(RowInterval);
    std::vector<size_t> order(mask.tiles.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t tile) { return mask.visits[tile]; });
    for (size_t before = 0; before < order.size(); ++before) {
      WorkTile tile = mask.tiles[order[before]];
      tile.run_begin += num_runs;
      tile.run_end += num_runs;
      for (int32_t i = 0; i < schedule_.work_tiles_of_tile(); ++i) {
        work_tiles[schedule_.place(m, i, static_cast<int64_t>(before))] =
            schedule_.work_tile(tile, m, i, mask.visits[order[before]]);
      }
    }
    std::ranges::copy(mask.run_tiles, array(run_tiles_, RangeQueryTiles{}) + num_runs);
    for (const TileRange& of_mask : mask.runs) {
      TileRange& run = array(runs_, TileRange{})[num_runs++] = of_mask;
      if (run.interval_begin >= 0) run.interval_begin += first_interval;
    }
  }
  QueryTile* const q_tiles = array(q_tiles_, QueryTile{});
  const auto rows = static_cast<int32_t>(shape_.seqlen_q);
  for (int32_t tile = 0; tile < num_q_tiles_; ++tile) {
    q_tiles[tile] = {tile * kKeyStepQueries, std::min((tile + 1) * kKeyStepQueries, rows)};
  }
  return end;
}

}  // namespace tangram::schedule
