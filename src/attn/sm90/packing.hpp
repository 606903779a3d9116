// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How many query heads share a tile, and how many groups of such heads share the L2 cache.
#pragma once

#include <cstdint>

#include "attn/sm90/common/shapes.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90 {

/// Packed rows of a work tile, softcap or not.
int work_tile_rows(const AttnShape& shape, ForwardWorkTiles work_tiles);
/// Heads that share a tile: the largest power of two that divides the query heads of a key head, at most 64.
int packed_heads(const AttnShape& shape);
/// The same of tiles of the forward pass, where some kernels take any number that divides those heads: as many as leave
/// few rows of a tile unused.
int packed_heads(const AttnShape& shape, ForwardWorkTiles work_tiles);
/// The work tiles of the forward kernels for this shape that do not gather.
ForwardWorkTiles plain_work_tiles(const AttnShape& shape);
/// The tiles of their lists.
TileShape forward_tile(const AttnShape& shape);
/// What a forward pass reads of a key of a key head, K and V.
inline int64_t forward_bytes_of_key(const AttnShape& shape) { return int64_t{2} * (shape.head_dim + shape.head_dim_v); }
/// Head groups that what belongs to them, `bytes_of_key` for each key of a key head, lets stay in the L2 cache, whole
/// key heads at a time, in sections of equal size. A section must last four times as long as the longest work tile,
/// though, or the multiprocessors would wait for those with which the last section begins.
int32_t groups_per_section(const AttnShape& shape, int64_t bytes_of_key, int64_t total_steps, int64_t longest_steps,
                           int pack);

}  // namespace tangram::sm90
