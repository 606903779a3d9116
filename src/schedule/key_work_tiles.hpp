// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a backward kernel walks: tiles of keys, each with the runs of query tiles that see it. Plain structs, made on
// the host (work_list.hpp) and copied to the device as they are.
#pragma once

#include <cstdint>

#include "tangram/tile_list.hpp"

namespace tangram::schedule {

inline constexpr int32_t kWorkTileZeroRows = 1;  ///< some rows of the key tile have no query: zero them (see `covered`)
inline constexpr int32_t kWorkTileOddPhase = 2;  ///< set by the kernel: phase of the barriers of K and V
inline constexpr int32_t kWorkTileDescending = 4;  ///< likewise: as Walk
inline constexpr int32_t kWorkTileHeadsInside = 8;

/// The query rows [row_begin, row_end) of a tile, at most kBlockM; the tiles cover all rows in order.
struct QueryTile {
  int32_t row_begin = 0;
  int32_t row_end = 0;
};

/// The query tiles [first, end) of a run, and where `dq_order_segments` says its turns in deterministic calls.
struct RangeQueryTiles {
  int32_t first = 0;
  int32_t end = 0;
  int32_t segment = 0;
};

/// One unit of work: the keys [row_begin, row_end) of one KV head against the query heads [head_begin, head_end) and
/// the runs of queries [run_begin, run_end). Runs are TileRuns of the transposed mask: what they call rows are keys
/// here, and what they call keys are queries.
struct alignas(16) WorkTile {
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t run_begin = 0;
  int32_t run_end = 0;
  int32_t kv_head = 0;
  int32_t head_begin = 0;
  int32_t head_end = 0;
  int32_t num_steps = 0;   ///< (query head, query tile) pairs of this work tile
  int32_t head_split = 0;  ///< of num_head_splits work tiles with the same keys and KV head, in scheduled order; the
                           ///< kernel changes it to their order of ending, unless calls are deterministic
  int32_t num_head_splits = 1;
  int32_t accum_tile = 0;  ///< where the pieces add up
  int32_t flags = 0;
  uint32_t covered[4] = {};  ///< bit i: row row_begin + i is seen by some query
};
static_assert(sizeof(WorkTile) == 64);

/// Deterministic calls: this run adds as number `turn` to its query tiles from `first_tile` up to the next segment's,
/// in the order of the walk. The last segment of a run is followed by one of kNoTile.
struct DqOrderSegment {
  int32_t first_tile = 0;
  int32_t turn = 0;

  friend bool operator==(const DqOrderSegment&, const DqOrderSegment&) = default;
};
inline constexpr int32_t kNoTile = -1;

/// The order of a work tile's steps.
struct Walk {
  bool descending = false;  ///< last run and last query tile first
  bool heads_innermost =
      false;  ///< all query heads of a query tile, then the next tile; else all tiles of a head first
};

/// Data of a mask for kernels, beside its lists.
struct BackwardMaskInfo {
  int32_t num_work_tiles = 0;
  Walk walk;
  bool zeroed_sums = true;  ///< dq is added to zeros, else the first addition stores
};

}  // namespace tangram::schedule
