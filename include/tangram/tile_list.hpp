// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The mask as attention kernels read it: per query tile a short list of runs of keys, with the interval that each row
// sees. Plain structs, made on the host (src/schedule/tile_list.hpp) and copied to the device as they are.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/range.hpp"

namespace tangram {

/// Rows and keys of a kernel tile; tile lists are built for them.
struct TileShape {
  int block_m = 128;
  int block_n = 128;
  /// Tiles begin anew where the mask falls apart (at packed documents) if that saves tiles. Such tiles may have fewer
  /// rows anywhere; otherwise only the last one may.
  bool follows_mask = false;
  /// Number of rows at whose multiples tiles begin anew, for any mask; tiles before them are shorter. 0: none.
  int anew_every = 0;

  friend bool operator==(const TileShape&, const TileShape&) = default;
};

/// The keys [begin, end) that one row sees inside one run; empty when begin >= end.
struct RowInterval {
  int32_t begin = 0;
  int32_t end = 0;

  friend bool operator==(const RowInterval&, const RowInterval&) = default;
};

/// A gap-free interval of keys that rows of one tile see. Some row of the tile sees every key of [k_begin, k_end), and
/// every row sees an interval of it. If one slice gives all rows their interval, row i of [row_begin, row_end) sees
/// [max(slice_k_begin, i + min_diag), min(slice_k_end, i + max_diag + 1)), and other rows nothing. Otherwise
/// `interval_begin` >= 0 is the begin of one entry for each row of the tile in TileList::intervals.
struct TileRange {
  int32_t k_begin = 0;
  int32_t k_end = 0;
  int32_t full_begin = 0;  ///< keys of [full_begin, full_end) are seen by every row of the tile
  int32_t full_end = 0;
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t slice_k_begin = 0;
  int32_t slice_k_end = 0;
  int32_t min_diag = 0;  ///< moved to a value that does not bind, so that i + min_diag cannot overflow
  int32_t max_diag = 0;
  int32_t interval_begin = -1;
  /// >= 0: a gathered run (src/schedule/gather_runs.hpp), whose keys are numbered on an axis of their own.
  int32_t group_begin = -1;

  friend bool operator==(const TileRange&, const TileRange&) = default;
};

/// The query rows [row_begin, row_end) of one tile and its runs [run_begin, run_end); a tile without runs sees nothing.
struct MaskTile {
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t run_begin = 0;
  int32_t run_end = 0;

  friend bool operator==(const MaskTile&, const MaskTile&) = default;
};

/// All tiles of one mask: together the work tiles own every query row exactly once, longest work tile first. They begin
/// at multiples of block_m and are that long, but for the last rows, unless the shape follows the mask or begins anew.
/// Independent of heads.
struct TileList {
  TileShape shape;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  /// Shapes that follow the mask: where the tiles of keys begin, and seqlen_k behind them. Else empty.
  std::vector<int32_t> key_tiles;
  std::vector<MaskTile> work_tiles;
  std::vector<TileRange> runs;
  std::vector<RowInterval> intervals;

  friend bool operator==(const TileList&, const TileList&) = default;
};

/// Keys that are there once flag `flag` of KvReadyFlags says so.
struct KeyReadyFlag {
  Range keys;
  int32_t flag = 0;

  friend bool operator==(const KeyReadyFlag&, const KeyReadyFlag&) = default;
};

}  // namespace tangram
