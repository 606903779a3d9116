// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Split-KV: cuts the keys of query tiles into parts. For masks with fewer tiles than multiprocessors (few query rows,
// many keys) or a last wave that is far from full.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tangram/attn_shape.hpp"
#include "tangram/tile_list.hpp"

namespace tangram {
struct GpuModel;  // src/machine/gpu_model.hpp; not included, so that its changes rebuild no kernels
}

namespace tangram::schedule {

/// A query tile in parts, and the place of their results. These are `num_parts` blocks of `num_rows` workspace rows,
/// one after the other, in the order of the parts' keys.
struct TileParts {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t first_row = 0;
  int32_t num_parts = 0;
};

/// A tile list whose work tiles are whole query tiles or parts of them. The parts of a tile cover each of its visible
/// (query, key) pairs once. Order: longest first; of about equal length, first parts before second parts.
struct PartList {
  TileList list;
  std::vector<int32_t> first_rows;  ///< of each work tile, in the workspace; -1 for whole tiles
  std::vector<TileParts> tiles;     ///< query tiles that are cut
  int64_t num_rows = 0;             ///< workspace rows of all parts
  double predicted_steps = 0;       ///< set by split_work_tiles: as whole_work_tiles_steps, with combine
};

/// Cuts each work tile into parts of equal length that have at most `max_steps` steps (tiles of keys). Cuts lie at
/// multiples of block_n from the begin of a run, so that there are no more steps than before.
PartList cut_work_tiles(const TileList& tiles, int64_t max_steps);
/// Cuts work tile i into num_parts[i] parts.
PartList cut_work_tiles(const TileList& tiles, const std::vector<int64_t>& num_parts);

/// Splits the work tiles if that is much faster, by a simulation of the schedule and of the cost of combining parts.
/// nullopt otherwise, always for many tiles. Each work tile runs once for each of `num_groups` groups of heads.
/// O(tiles), for masks with many tiles O(1).
std::optional<PartList> split_work_tiles(const TileList& tiles, const AttnShape& shape, int64_t num_groups,
                                         const GpuModel& gpu);

/// Predicted steps of the multiprocessor that ends last, with the cost of work tiles, if whole work tiles are scheduled
/// longest first. Each work tile is scheduled once for each of `num_groups` head groups.
double whole_work_tiles_steps(std::vector<int64_t> steps, int64_t num_groups, const GpuModel& gpu);

}  // namespace tangram::schedule
