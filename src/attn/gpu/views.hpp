// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What kernels read of a slot: pointers into device memory, and sizes. Backends copy them into the parameters of their
// kernels.
#pragma once

#include <cstdint>
#include <limits>

#include "schedule/forward_lists.hpp"
#include "schedule/group_work_tiles.hpp"
#include "schedule/key_work_tiles.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::gpu {

/// View of schedule::ForwardLists, for the forward pass.
struct ForwardView {
  schedule::ForwardChoice choice;
  const MaskTile* work_tiles = nullptr;
  const TileRange* runs = nullptr;
  const RowInterval* intervals = nullptr;
  const int32_t* key_groups = nullptr;
  const int32_t* work_tile_groups = nullptr;  ///< null: work tiles are of all `num_groups`
  int32_t* counters = nullptr;                ///< two zeros, for the kernel's scheduler; zero again when it ends
  int32_t num_work_tiles = 0;
  int32_t num_groups = 1;
  int32_t groups_per_section = 1;  ///< whose keys and values fit into the L2 cache together
  // Split-KV work tiles.
  const int32_t* part_rows = nullptr;
  const schedule::TileParts* part_tiles = nullptr;
  const int32_t* part_heads = nullptr;
  int32_t num_part_tiles = 0;  ///< 0: no tile is in parts
  int64_t num_part_rows = 0;
  int num_masks = 1;
};

/// Scratch memory of a KV-stationary backward call. Sizes are those of the compiled kernels (KernelTable).
struct BackwardScratch {
  float* stats = nullptr;              ///< [tables of query tiles, rows of a step, 4]
  float* dq_sums = nullptr;            ///< [tables of query tiles, rows of a step, head_dim]
  float* accum_tiles = nullptr;        ///< [accumulator tiles, keys of a work tile, both head dims]
  int32_t* dq_semaphore = nullptr;     ///< [tables of query tiles, 2]
  int32_t* split_semaphore = nullptr;  ///< [kernels, accumulator tiles]
  int32_t* ticket = nullptr;           ///< [kernels]
  size_t bytes = 0;
};

/// View of schedule::WorkList, for KV-stationary backward calls.
struct BackwardView {
  const schedule::WorkTile* work_tiles = nullptr;
  const TileRange* runs = nullptr;
  const schedule::RangeQueryTiles* run_tiles = nullptr;  ///< of each run
  const schedule::QueryTile* q_tiles = nullptr;
  const RowInterval* intervals = nullptr;
  /// Null, or a bit for each row of a query tile: 0 where no key sees it. Of the main kernel, and of those before and
  /// after.
  const uint64_t* covered_queries = nullptr;
  const uint64_t* covered_queries_pre_post = nullptr;
  const schedule::DqOrderSegment* dq_order_segments = nullptr;
  /// Null, or in place of num_work_tiles, walk and zeroed_sums.
  const schedule::BackwardMaskInfo* mask_info = nullptr;
  int32_t num_work_tiles = 0;
  int64_t most_work_tiles = std::numeric_limits<int64_t>::max();  ///< as far as the host knows
  int32_t num_q_tiles = 0;                                        ///< of a mask
  int32_t q_tile_stride = 0;                                      ///< NOTE [tables of masks]
  int32_t heads_per_mask = 0;                                     ///< 0: one mask
  int32_t num_accum_tiles = 0;                                    ///< of all kernels
  schedule::Walk walk;
  bool zeroed_sums = false;
  BackwardScratch scratch;
};

/// View of schedule::GroupList, for Q-stationary backward calls.
struct SparseView {
  const schedule::GroupWorkTile* work_tiles = nullptr;
  const int32_t* groups = nullptr;
  const schedule::RowBits* masks = nullptr;
  int32_t num_work_tiles = 0;
  int32_t num_head_groups = 1;  ///< each of which has all work tiles; 1 where work tiles name theirs
  int32_t groups_per_section = 1;

  /// Number of work tiles of all head groups.
  int64_t num_all_work_tiles() const { return int64_t{num_work_tiles} * num_head_groups; }
};

/// Scratch memory of Q-stationary backward calls.
struct SparseScratch {
  float* stats = nullptr;    ///< [head groups, tiles, packed rows, 4]
  float* dk_sums = nullptr;  ///< [num_heads_kv, groups of keys, kGroupKeys * head_dim]
  float* dv_sums = nullptr;
  int32_t* ticket = nullptr;
  size_t bytes = 0;
};

}  // namespace tangram::gpu
