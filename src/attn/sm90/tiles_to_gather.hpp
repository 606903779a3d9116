// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The tile lists of masks for kernels that gather runs, whose items may be others than those that a mask comes with.
#pragma once

#include <span>
#include <vector>

#include "attn/sm90/common/shapes.hpp"
#include "schedule/split_or_gather.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90 {

/// Which items kernels that gather take of masks of such slices, each of a shape's, and their tiles: the larger ones,
/// begun anew with each block, where these need fewer for it than the smaller ones.
ForwardItems items_to_gather(std::span<const std::span<const AttnSlice>> slices, const AttnShape& shape,
                             TileShape& tile);

/// Keeps lists that it had to make: must outlive view() and what comes of it, and stay where it is.
class TilesToGather {
 public:
  /// `tiles`: lists of Sm90Backend::tile_shape of masks of this shape; must outlive this.
  TilesToGather(std::span<const TileList> tiles, std::span<const std::span<const AttnSlice>> slices,
                const AttnShape& shape);
  TilesToGather(const TilesToGather&) = delete;
  TilesToGather& operator=(const TilesToGather&) = delete;

  const schedule::GatherableTiles& view() const { return view_; }
  /// Those that the lists of view() are of.
  ForwardItems items() const { return items_; }

 private:
  std::vector<TileList> made_;
  schedule::GatherableTiles view_;
  ForwardItems items_ = ForwardItems::kGathered;
};

}  // namespace tangram::sm90
