// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// All lists of a block-sparse mask in one block of memory, for the kernels that gather keys; mask_image.hpp is for
// kernels that do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedule/gather_runs.hpp"
#include "schedule/group_work_tiles.hpp"
#include "schedule/key_image.hpp"
#include "schedule/regular_tiles.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Packed rows of a tile, and keys of a step.
inline constexpr int kBlockTileRows = 128, kBlockStepKeys = 128;
/// A gathered run, and those of keys that only some rows of a tile see.
inline constexpr int kBlockRunsPerTile = 3;
/// Masks of groups on the diagonal, of blocks that are causal: see BlockBuild.
inline constexpr int kDiagonalMasks = 8;

/// Tiles of the forward pass if they differ from the backward tiles, or are not gathered: blocks that fill steps are
/// listed as they are, in runs.
struct ForwardTiles {
  TileShape shape;
  bool gathers = true;
};

/// Lists of one mask, tile by tile.
struct BlockMask {
  GatheredList forward;
  GroupList backward;
  KeyLists keys;  ///< in place of `backward`, where keys rest
};

/// NOTE [block image] Every tile of every head group has a work tile in both passes, for any mask, so that the launch
/// does not depend on the mask. If each head group has a mask, work tiles name their head group, and lists give the
/// order of work. Sections of head groups follow each other; in a section the longest work tiles come first, equal ones
/// by their place in their mask. Else work tiles are listed once, and kernels walk head groups in sections of as many.
/// Runs are those of each mask and tile. Both passes point into one array of key groups. Indices of key groups and
/// masks count from the begin of the image, since these arrays end it and are as long as the mask needs. Blocks that
/// fill the tiles of the KV-stationary kernel have lists of these backward (KeyImage), and intervals in the place of
/// masks.
class BlockImageLayout {
 public:
  /// `tile_rows`: queries of a tile; `forward`: of as many query heads; `may_rest`: whether keys rest in the backward
  /// pass of blocks that fill their tiles. Throws InvalidArgument for a capacity that blocks cannot have.
  BlockImageLayout(const AttnShape& shape, int tile_rows, const MaskCapacity& capacity, const GpuModel& gpu,
                   const std::optional<ForwardTiles>& forward = std::nullopt, bool may_rest = true);

  /// Bytes of the largest image.
  size_t bytes() const { return bytes_; }

  /// Makes the lists of a mask on the host. Throws InvalidArgument that names a tile which does not see whole groups of
  /// keys.
  BlockMask make(std::span<const AttnSlice> slices) const;
  /// Throws InvalidArgument, naming what is too much, unless the masks fit.
  void check(std::span<const BlockMask> masks) const;
  /// Writes the image of masks that were checked, one for each head group of the capacity, to `to`, of bytes(), aligned
  /// to 256. Returns how many bytes it has; what lies between its arrays is left as it was.
  size_t write(std::byte* to, std::span<const BlockMask> masks) const;

  // Offsets in bytes.
  size_t forward_work_tiles() const { return forward_work_tiles_; }
  size_t work_tile_groups() const { return work_tile_groups_; }
  size_t backward_work_tiles() const { return backward_work_tiles_; }
  size_t runs() const { return runs_; }
  size_t diagonal_masks() const { return diagonal_masks_; }
  size_t groups() const { return groups_; }

  const AttnShape& shape() const { return shape_; }
  const MaskCapacity& capacity() const { return capacity_; }
  int tile_rows() const { return tile_rows_; }
  /// Whether runs of the forward pass are gathered.
  bool gathers() const { return gathers_; }
  /// Whether keys rest in the backward pass; else it gathers.
  bool kv_stationary() const { return keys_rest_; }
  const KeyImage& keys() const { return keys_; }
  /// Number of which block sizes must be multiples.
  int64_t block_multiple() const;
  /// Query tiles of the forward pass (`pass` 0), key tiles of the backward pass (1).
  const RegularTiles& tiles(int pass) const { return tiles_[pass]; }
  int64_t num_tiles(int pass) const { return tiles_[pass].count(); }
  /// Groups of query heads that share tiles.
  int num_head_groups() const { return num_head_groups_; }
  /// Head groups whose work tiles are listed: all, or one that stands for all.
  int listed_head_groups() const { return capacity_.head_groups > 1 ? num_head_groups_ : 1; }
  int64_t num_work_tiles(int pass) const { return num_tiles(pass) * listed_head_groups(); }
  /// Head groups of a section: keys and values, and backward their sums too, of these share the L2 cache.
  int forward_section() const { return sections_[0]; }
  int backward_section() const { return sections_[1]; }
  /// Groups of keys of all masks, forward. Backward tiles of a block may list keys one by one in masks of the host; the
  /// last ones differ if blocks are causal.
  int64_t max_groups() const { return max_groups_; }
  int64_t max_backward_groups() const { return max_groups_ * (capacity_.block_size / tile_rows_); }
  int64_t max_masks() const { return max_masks_; }

 private:
  struct Place {
    int head_group = 0;
    int64_t work_tile = 0;  // of its mask's list
  };
  template <class Cost>
  std::vector<Place> order(std::span<const BlockMask> masks, int pass, const Cost& cost) const;

  AttnShape shape_;
  MaskCapacity capacity_;
  int tile_rows_ = 0, num_head_groups_ = 0;
  RegularTiles tiles_[2];
  bool gathers_ = true, keys_rest_ = false;
  KeyImage keys_;
  int64_t max_runs_ = 0, max_groups_ = 0, max_masks_ = 0;
  int sections_[2] = {1, 1};
  size_t forward_work_tiles_ = 0, work_tile_groups_ = 0, backward_work_tiles_ = 0, runs_ = 0, diagonal_masks_ = 0,
         groups_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tangram::schedule
