// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Lists of a KV-stationary backward pass, of blocks that each head group chose: a part of NOTE [block image].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/builder/team.hpp"
#include "schedule/work_list.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Keys of a stationary tile, and queries of a step.
inline constexpr int kKeyTileRows = 128, kKeyStepQueries = 64;

/// Schedule of work tiles, independent of the mask. Every K/V head has one for each key tile, also for fully masked
/// tiles, with equally many head splits. Order: K/V head by K/V head, piece by piece, as scattered_sections() has it,
/// so that concurrent work tiles share queries. In a piece the longest tiles come first.
struct KeyTileSchedule {
  int32_t num_tiles = 0;
  int32_t head_splits = 1;
  int32_t heads_q = 1, heads_kv = 1, masks = 1;

  TANGRAM_HOST_DEVICE int32_t num_work_tiles() const { return num_tiles * heads_kv * head_splits; }
  /// Work tiles of one key tile of one mask.
  TANGRAM_HOST_DEVICE int32_t work_tiles_of_tile() const { return heads_kv / masks * head_splits; }
  /// Where the i-th of them is scheduled; `before`: tiles of the mask with more to do, or as much and earlier keys.
  TANGRAM_HOST_DEVICE int64_t place(int32_t mask, int32_t i, int64_t before) const {
    return (int64_t{mask} * work_tiles_of_tile() + i) * num_tiles + before;
  }
  /// The i-th itself; `of_tile` has what is the same for all. Of a fully masked tile one is whole and writes zeros, the
  /// others have no keys.
  TANGRAM_HOST_DEVICE WorkTile work_tile(const WorkTile& of_tile, int32_t mask, int32_t i, int32_t visits) const {
    const int32_t number = mask * work_tiles_of_tile() + i, group = heads_q / heads_kv;
    const int32_t head = number / head_splits, head_split = number % head_splits;
    WorkTile work_tile = of_tile;
    work_tile.kv_head = head;
    work_tile.head_begin = head * group + group * head_split / head_splits;
    work_tile.head_end = head * group + group * (head_split + 1) / head_splits;
    work_tile.num_steps = visits * (work_tile.head_end - work_tile.head_begin);
    work_tile.num_head_splits = visits > 0 ? head_splits : 1;
    work_tile.head_split = visits > 0 ? head_split : 0;
    work_tile.accum_tile = head * num_tiles + of_tile.row_begin / kKeyTileRows;
    if (visits == 0 && head_split > 0) work_tile.row_end = work_tile.row_begin;
    return work_tile;
  }
};

/// Lists of key tiles for one mask of the host.
struct KeyLists {
  std::vector<WorkTile> tiles;  ///< in the order of keys, with what all their work tiles have in common
  std::vector<int32_t> visits;  ///< of each, steps of one query head
  std::vector<TileRange> runs;
  std::vector<RangeQueryTiles> run_tiles;
  std::vector<RowInterval> intervals;
};

/// Whether there are so many tiles that KV-stationary kernels are faster than gathering ones. With few tiles in many
/// head splits, adding these up takes the time (docs/devlog/2026-11-25-block-buffers.md).
bool has_many_key_tiles(const AttnShape& shape, const GpuModel& gpu);

/// Whether all queries of each tile see something, or none does, so that kernels need not ask which.
bool sees_whole_query_tiles(const WorkList& work);

/// Where the lists are. Tiles of queries are the same for all masks, since blocks begin where tiles do.
class KeyImage {
 public:
  KeyImage() = default;
  /// Behind `begin`, of an image. `capacity`: of blocks of multiples of kKeyTileRows, slices not 0.
  KeyImage(const AttnShape& shape, const MaskCapacity& capacity, const GpuModel& gpu, size_t begin);

  /// Where what follows may begin.
  size_t end() const { return end_; }
  /// Behind all, where the mask of the host has them: rows that a run gives intervals of their own.
  int64_t max_intervals() const { return max_intervals_; }

  /// Throws InvalidArgument for a mask of which some queries of a tile see something, and others nothing.
  KeyLists make(std::span<const AttnSlice> slices) const;
  /// Throws InvalidArgument, naming what is too much, unless the lists fit, one for each mask.
  void check(std::span<const KeyLists* const> masks) const;
  /// Writes them, and their intervals to `intervals`, which is of TileRange::interval_begin; returns where these end.
  size_t write(std::byte* to, std::span<const KeyLists* const> masks, size_t intervals) const;

  // Offsets in bytes.
  size_t work_tiles() const { return work_tiles_; }
  size_t runs() const { return runs_; }
  size_t run_tiles() const { return run_tiles_; }
  size_t q_tiles() const { return q_tiles_; }

  const KeyTileSchedule& schedule() const { return schedule_; }
  /// All query heads of a tile one after the other, where that is faster.
  Walk walk() const { return walk_; }
  int32_t num_q_tiles() const { return num_q_tiles_; }
  int64_t max_runs() const { return max_runs_; }
  /// Where work tiles in pieces add up.
  int64_t num_accum_tiles() const {
    return schedule_.head_splits > 1 ? int64_t{schedule_.num_tiles} * schedule_.heads_kv : 0;
  }

 private:
  AttnShape shape_;
  MaskCapacity capacity_;
  KeyTileSchedule schedule_;
  Walk walk_;
  int32_t num_q_tiles_ = 0;
  int64_t max_runs_ = 0, max_intervals_ = 0;
  size_t work_tiles_ = 0, runs_ = 0, run_tiles_ = 0, q_tiles_ = 0, end_ = 0;
};

}  // namespace tangram::schedule
