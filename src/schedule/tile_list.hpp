// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Cuts the query rows of a mask into tiles and lists what each sees as runs of keys (tangram/tile_list.hpp).
#pragma once

#include <cstdint>
#include <span>

#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// The tiles of `slices` over `[0, seqlen_q) x [0, seqlen_k)`. Every query row belongs to exactly one work tile, every
/// visible cell to exactly one run, and work tiles come longest first. The slices must lie inside the sequences and not
/// cover a cell twice (not checked here). Needs time O(slices * log(slices) + tiles) plus the rows of tiles in which
/// slices meet. Throws InvalidArgument when a sequence exceeds 2^31 - 2^16 rows or the shape is not positive.
TileList build_tile_list(std::span<const AttnSlice> slices, int64_t seqlen_q, int64_t seqlen_k, TileShape shape);

/// Tiles of `block_n` keys that so many keys take. Of 32 bits, whose division takes half or a quarter of the time.
inline int64_t steps_of_keys(int64_t keys, int64_t block_n) {
  return static_cast<uint32_t>(keys + block_n - 1) / static_cast<uint32_t>(block_n);
}

/// Steps of a work tile, `runs` being those of its list.
inline int64_t work_tile_steps(const MaskTile& work_tile, std::span<const TileRange> runs, int64_t block_n) {
  int64_t steps = 0;
  for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
    const TileRange& run = runs[static_cast<size_t>(r)];
    steps += steps_of_keys(int64_t{run.k_end} - run.k_begin, block_n);
  }
  return steps;
}

/// The slice with queries and keys exchanged, as the backward pass walks it.
AttnSlice transposed(const AttnSlice& slice);

/// build_tile_list of transposed slices: work tiles of key rows with runs of query rows.
TileList transposed_tile_list(std::span<const AttnSlice> slices, int64_t seqlen_q, int64_t seqlen_k, TileShape shape);

}  // namespace tangram::schedule
