// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/tiles_to_gather.hpp"

#include <algorithm>

#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/prepared_mask.hpp"
#include "schedule/gather_runs.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::sm90 {

namespace {

// A step of 128 rows beside one of 192, as measured (head_dim 64).
constexpr double kSmallerStep = 0.8;

}  // namespace

TilesToGather::TilesToGather(std::span<const TileList> tiles, std::span<const std::span<const AttnSlice>> slices,
                             const AttnShape& shape) {
  if (!gathers_runs(shape.head_dim, shape.head_dim_v)) return;
  TileShape wanted = tiles[0].shape;
  wanted.block_m = forward_tile_rows(shape.head_dim, shape.head_dim_v, ForwardItems::kGathered) /
                   packed_heads(shape, ForwardItems::kGathered);
  wanted.block_n = forward_tile_keys(shape.head_dim, shape.head_dim_v, false, ForwardItems::kGathered);
  if (wanted == tiles[0].shape) {
    view_.masks = tiles;
    return;
  }
  if (std::none_of(tiles.begin(), tiles.end(), schedule::may_gather)) return;
  for (const std::span<const AttnSlice> of_mask : slices) {
    made_.push_back(schedule::build_tile_list(of_mask, shape.seqlen_q, shape.seqlen_k, wanted));
  }
  const int64_t groups = shape.num_heads_q / packed_heads(shape, ForwardItems::kGathered);
  view_ = {made_, kSmallerStep, groups / static_cast<int64_t>(tiles.size())};
}

}  // namespace tangram::sm90
