// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Where the small kernels of a backward call find what belongs to a query head and a tile of its mask.
#pragma once

#include <cstdint>

namespace tangram::sm90::backward {

struct TilePlace {
  int32_t tile;  ///< in q_tiles and covered_queries
  int64_t accum_tile;
};

/// `tile` counts from the first of the mask. See NOTE [tables of masks]. The main kernel computes the same place from
/// runs, which name tiles of their mask's table, and a stride.
template <typename AnyParams>
__device__ __forceinline__ TilePlace tile_place(const AnyParams& params, int32_t head, int32_t tile) {
  const int32_t in_tables =
      params.heads_per_mask == 0 ? tile : head / params.heads_per_mask * params.num_q_tiles + tile;
  return {in_tables, (params.heads_per_mask == 1 ? 0 : int64_t{head} * params.num_q_tiles) + in_tables};
}

}  // namespace tangram::sm90::backward
