// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Query tiles cut along their keys, for masks with fewer tiles than multiprocessors (few query rows, long keys).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tangram/attn_shape.hpp"
#include "tangram/tile_list.hpp"

namespace tangram {
struct GpuModel;  // src/machine/gpu_model.hpp, whose changes are nothing to the kernels that read parts
}

namespace tangram::schedule {

/// A query tile in parts, and where they leave their results: `num_parts` blocks of `num_rows` workspace rows, one
/// after the other, in the order of the parts' keys.
struct TileParts {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t first_row = 0;
  int32_t num_parts = 0;
};

/// A tile list whose work tiles are parts of query tiles: each sees some of the keys that its rows see, and together
/// the parts of a tile show each cell once. Tiles may stay whole. Long work tiles come before short ones, and of about
/// equal ones first parts before second ones.
struct PartList {
  TileList list;
  std::vector<int32_t> first_rows;  ///< of each work tile, in the workspace; -1 for whole tiles
  std::vector<TileParts> tiles;     ///< those in parts
  int64_t num_rows = 0;             ///< of the workspace
  double predicted_steps = 0;       ///< of split_work_tiles: as whole_work_tiles_steps, merging included
};

/// Cuts each work tile into parts of equal length that have at most `max_steps` steps (tiles of keys). Cuts lie at
/// multiples of block_n from the begin of a run, so that there are no more steps than before.
PartList cut_work_tiles(const TileList& tiles, int64_t max_steps);
/// The same, work tile i into num_parts[i] parts.
PartList cut_work_tiles(const TileList& tiles, const std::vector<int64_t>& num_parts);

/// The work tiles in parts if that is much faster, by a simulation of the schedule and of the cost of combining parts;
/// nothing for other masks, among them all with many tiles. Each work tile runs once for each of `num_groups` groups of
/// heads. O(tiles), for masks with many tiles O(1).
std::optional<PartList> split_work_tiles(const TileList& tiles, const AttnShape& shape, int64_t num_groups,
                                         const GpuModel& gpu);

/// Steps that the multiprocessor which ends last is predicted to take, with the cost of work tiles, if whole work tiles
/// of these steps are scheduled longest first, each once for each of `num_groups` groups of heads.
double whole_work_tiles_steps(std::vector<int64_t> steps, int64_t num_groups, const GpuModel& gpu);

}  // namespace tangram::schedule
