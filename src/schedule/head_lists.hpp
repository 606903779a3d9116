// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One list of work tiles for head groups that see different pairs. It joins the lists of each group's mask, in the
// order in which one launch walks them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/forward_lists.hpp"
#include "schedule/split_or_gather.hpp"
#include "schedule/work_list.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Work tiles as one launch schedules them: in sections of masks whose keys and values share the L2 cache, longest
/// first in a section. Few tiles are cut into parts, and runs of `gatherable` gathered, as those of a mask alone are;
/// no launch does both. Masks are as many as divide the K/V heads, at least two, and of one shape.
ForwardLists join_tiles(std::span<const TileList> masks, const AttnShape& shape, int64_t num_groups,
                        const GpuModel& gpu, const GatherableTiles& gatherable, bool may_split = true);

/// Work list of a backward kernel for the masks; `transposed[g]` is the tile list of the transposed `slices[g]`.
///
/// NOTE [tables of masks] Query tiles, and which of their rows are seen, differ between masks. WorkList::q_tiles is a
/// table for each mask. All are as long as the longest, with empty tiles at the end; runs of mask g name tiles of its
/// table. Kernels place what belongs to (query head, tile) at head * stride + tile. The length of a table is the
/// stride, so the data of the next mask begins a head further on and no two meet. If a mask is of one query head,
/// stride 0 gives the same places without gaps.
///
/// Additions to an accumulator tile come in the order in which the work tiles of a mask alone would be scheduled.
WorkList join_work(std::span<const TileList> transposed, std::span<const std::span<const AttnSlice>> slices,
                   const AttnShape& shape, const GpuModel& gpu, BackwardCalls calls);

/// See NOTE [tables of masks]: how many tables hold the accumulator tiles of all query heads, and the stride.
int64_t accum_tile_tables(int num_heads_q, int num_masks);
int32_t accum_tile_stride(int32_t tiles_of_table, int heads_per_mask);

}  // namespace tangram::schedule
