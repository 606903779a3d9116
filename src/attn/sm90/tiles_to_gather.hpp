// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The tile lists of masks for kernels that gather runs, whose items may be others than those that a mask comes with.
#pragma once

#include <span>
#include <vector>

#include "schedule/split_or_gather.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90 {

/// Keeps lists that it had to make: must outlive view() and what comes of it, and stay where it is.
class TilesToGather {
 public:
  /// `tiles`: lists of Sm90Backend::tile_shape of masks of this shape; must outlive this.
  TilesToGather(std::span<const TileList> tiles, std::span<const std::span<const AttnSlice>> slices,
                const AttnShape& shape);
  TilesToGather(const TilesToGather&) = delete;
  TilesToGather& operator=(const TilesToGather&) = delete;

  const schedule::GatherableTiles& view() const { return view_; }

 private:
  std::vector<TileList> made_;
  schedule::GatherableTiles view_;
};

}  // namespace tangram::sm90
