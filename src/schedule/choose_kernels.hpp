// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which forward kernel a mask gets, and the lists that it walks: whole work tiles, split-KV work tiles, or gathered
// runs. Also how many query heads share a tile, and how many groups of such heads share the L2 cache. Pure functions of
// the mask, the shape and what the backend has (KernelTable). Backward: choose_sparse_backward.hpp.
#pragma once

#include <cstdint>
#include <span>

#include "schedule/forward_lists.hpp"
#include "schedule/kernel_table.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"
#include "tangram/kv_ready_flags.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Heads that share a tile: the largest power of two that divides the query heads of a key head, at most 64.
int packed_heads(const AttnShape& shape);
/// Packed query heads of forward tiles. Some kernels take any divisor of the heads of a K/V head: as many as leave few
/// rows of a tile unused.
int packed_heads(const KernelTable& kernels, const AttnShape& shape, ForwardWorkTiles work_tiles);
/// The work tiles of the forward kernels for this shape that do not gather.
ForwardWorkTiles plain_work_tiles(const KernelTable& kernels, const AttnShape& shape);
/// The tiles of their lists.
TileShape forward_tile(const KernelTable& kernels, const AttnShape& shape);

/// Bytes that a forward pass reads of a key of a K/V head, K and V.
inline int64_t forward_bytes_of_key(const AttnShape& shape) { return int64_t{2} * (shape.head_dim + shape.head_dim_v); }
/// Number of head groups whose data, `bytes_of_key` for each key of a K/V head, stays in the L2 cache. Whole K/V heads
/// at a time, in sections of equal size. A section must last four times as long as the longest work tile, though.
/// Otherwise multiprocessors would wait for the work tiles with which the last section begins.
int32_t groups_per_section(const GpuModel& gpu, const AttnShape& shape, int64_t bytes_of_key, int64_t total_steps,
                           int64_t longest_steps, int pack);

/// The tile list of a mask for the forward pass. Throws InvalidArgument for one beyond what kernels count.
TileList list_forward_tiles(std::span<const AttnSlice> slices, const AttnShape& shape, const KernelTable& kernels,
                            const TileShape& tile);

/// The lists of the forward pass of a mask, or of masks of head groups, and the kernel that is predicted to walk them
/// soonest. `ready_flags`: of keys that are awaited, of one mask. Throws as list_forward_tiles.
ForwardLists choose_forward(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                            const KernelTable& kernels, const GpuModel& gpu,
                            std::span<const KeyReadyFlag> ready_flags = {});
/// Forward lists of one mask, from its tile list for kernels that do not gather.
ForwardLists choose_forward(TileList tiles, std::span<const AttnSlice> slices, const AttnShape& shape,
                            const KernelTable& kernels, const GpuModel& gpu);

/// Contents of a padded slot: lists of any mask of a capacity (ImageLayout), or of small blocks (BlockImageLayout).
struct PaddedChoice {
  bool is_of_blocks = false;
  ForwardWorkTiles work_tiles = ForwardWorkTiles::kPlain;
  TileShape tile;         ///< of the forward pass
  MaskCapacity capacity;  ///< of the lists
  // Block-sparse masks: whether the forward kernel gathers runs, and whether backward kernels are KV-stationary.
  bool gathers = false;
  bool kv_stationary = false;
};
/// Kernel choice of a padded slot, a function of the capacity alone. Throws InvalidArgument for blocks of head dims
/// that no kernel gathers.
PaddedChoice choose_padded(const AttnShape& shape, const MaskCapacity& capacity, const KernelTable& kernels,
                           const GpuModel& gpu);

}  // namespace tangram::schedule
