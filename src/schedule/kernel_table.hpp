// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// All that lists of masks, and the choice among kernels, depend on of the kernels of a GPU backend.
#pragma once

#include <cstdint>
#include <limits>

#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Which work tiles a forward kernel takes.
enum class ForwardWorkTiles : int {
  kPlain = 0,
  kMany,      ///< of long sequences
  kGathered,  ///< for gathered runs (gather_runs.hpp)
  kAligned,   ///< likewise, larger: work tiles begin anew with blocks, and are shorter before
};

/// Rows of a work tile, those of all heads that share it, and keys of a step.
struct WorkTileShape {
  int rows = 0;
  int keys = 0;
};

/// The kernels of a backend for one pair of head dims. Abilities that a backend has not are left as they are here.
struct KernelTable {
  /// Work tiles by ForwardWorkTiles; kMany and kGathered equal kPlain if they have none of their own.
  WorkTileShape forward[4];
  /// Rows of queries times heads from which work tiles of kMany are taken.
  int64_t many_rows = std::numeric_limits<int64_t>::max();
  /// There are forward kernels that take work tiles in parts, and one that joins them.
  bool splits_kv = false;
  /// Work tiles, unless gathered, are of any number of query heads, not of powers of two alone.
  bool packs_any_heads = false;
  bool gathers = false;            ///< There are forward kernels that gather runs.
  bool aligns_work_tiles = false;  ///< Besides, some take work tiles of kAligned.
  bool fetches_ranges = false;     ///< There are forward kernels that fetch the runs of a work tile ahead.

  /// KV-stationary backward kernels: keys of a work tile by queries of a step.
  TileShape backward{128, 64, true};
  /// Head dims of their sums of dq, dk and of dv, padded to those of the compiled kernel.
  int backward_head_dim = 0, backward_head_dim_v = 0;
  /// Kernels that take work tiles, and join pieces, each for itself.
  int backward_kernels = 1;
  /// Work tiles of Q-stationary backward kernels that gather groups of keys; 0 rows: no such kernel.
  WorkTileShape backward_sparse;

  const WorkTileShape& of(ForwardWorkTiles work_tiles) const { return forward[static_cast<int>(work_tiles)]; }
};

}  // namespace tangram::schedule
