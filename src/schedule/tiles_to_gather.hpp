// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The tile lists of masks for kernels that gather runs, whose work tiles may differ from the prepared ones of a mask.
#pragma once

#include <span>
#include <vector>

#include "schedule/kernel_table.hpp"
#include "schedule/split_or_gather.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Work tiles of kernels that gather, and their tiles.
struct GatheredWorkTiles {
  ForwardWorkTiles work_tiles = ForwardWorkTiles::kGathered;
  TileShape tile;
};

/// Work tiles for masks whose blocks begin and end at multiples of `block_rows` (0: anywhere). The larger tiles, begun
/// anew with each block, if these need fewer of them than of the smaller ones.
GatheredWorkTiles work_tiles_to_gather(int64_t block_rows, const AttnShape& shape, const KernelTable& kernels);
/// Work tiles for one mask per head group, given by its slices.
GatheredWorkTiles work_tiles_to_gather(std::span<const std::span<const AttnSlice>> slices, const AttnShape& shape,
                                       const KernelTable& kernels);

/// Keeps lists that it had to make: must outlive view() and what comes of it, and stay where it is.
class TilesToGather {
 public:
  /// `tiles`: lists of forward_tile() of masks of this shape; must outlive this.
  TilesToGather(std::span<const TileList> tiles, std::span<const std::span<const AttnSlice>> slices,
                const AttnShape& shape, const KernelTable& kernels);
  TilesToGather(const TilesToGather&) = delete;
  TilesToGather& operator=(const TilesToGather&) = delete;

  const GatherableTiles& view() const { return view_; }
  /// The work tiles of the lists of view().
  ForwardWorkTiles work_tiles() const { return work_tiles_; }
  /// Lists of view() that this object made; may be moved from once the choice is made.
  std::span<TileList> made() { return made_; }

 private:
  std::vector<TileList> made_;
  GatherableTiles view_;
  ForwardWorkTiles work_tiles_ = ForwardWorkTiles::kGathered;
};

}  // namespace tangram::schedule
