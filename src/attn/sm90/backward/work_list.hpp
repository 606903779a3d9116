// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// From the tile list of a transposed mask to the items of the backward kernel, in the order in which they are dealt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/sm90/backward/params.hpp"
#include "tangram/attention.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90::backward {

/// Tiles of a transposed list: keys of an item by queries of a step.
inline constexpr TileShape kTileShape{128, 64};

struct WorkList {
  std::vector<Item> items;
  std::vector<TileRun> runs;  ///< those of the tile list; `reserved` says where a run's turns begin in `orders`
  std::vector<RowInterval> intervals;
  std::vector<uint64_t> covered_queries;  ///< empty where every query sees a key, else a bit a row for each query tile
  int32_t num_slabs = 0;
  int32_t num_q_tiles = 0;
  int64_t num_turns = 0;  ///< entries of `orders`
};

/// Items of all KV heads. Where items are few or of unequal length they are cut into pieces by query heads, as far as
/// a simulation of the dealing on `num_sms` multiprocessors gains by it; docs/design/backward_sm90.md says in which
/// order they are dealt and why; where keys come late, in the order in which they come before all else. `tiles` is the
/// list of the transposed `slices`, of kTileShape.
WorkList make_work_list(const TileList& tiles, std::span<const AttnSlice> slices, const AttnShape& shape, int num_sms,
                        const LateKeys& late_keys = {});

/// For deterministic calls: for each run and query tile in it, how many items add to that tile before (for any head).
std::vector<int32_t> turn_orders(const WorkList& work);

}  // namespace tangram::sm90::backward
