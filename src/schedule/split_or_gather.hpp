// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Work tiles in parts (kv_splits.hpp) or gathered runs (gather_runs.hpp): no forward kernel takes both.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedule/gather_runs.hpp"
#include "schedule/kv_splits.hpp"

namespace tangram::schedule {

/// At most one of them.
struct SplitOrGathered {
  const TileList* tiles = nullptr;  ///< what the launch walks where there is neither
  std::optional<PartList> parts;
  std::optional<GatheredList> gathered;
};

/// The tiles of the same masks that a kernel which gathers takes.
struct GatherableTiles {
  std::span<const TileList> masks;  ///< empty: there is no such kernel, or nothing to gather
  double step = 1.0;                ///< how long a step of it lasts, in steps of a kernel that does not
  bool alone = false;               ///< its tiles are of no other kernel, and worth it where they gather nothing
  int64_t num_groups = 0;           ///< of heads, of one mask; 0: as many as of other tiles
};

/// For each of `masks`, which one launch computes, the option that is predicted to end sooner. If some could be split
/// and some gathered, one of the two is applied to all masks that allow it. Gathered runs are those of `gatherable`,
/// the same tiles or others. `shape`, `gpu` and `num_groups`, for each of which a work tile runs once, are the share of
/// one mask. `may_split`: there are kernels that take parts. What is returned points to the lists that were given.
std::vector<SplitOrGathered> split_or_gather(std::span<const TileList> masks, const AttnShape& shape,
                                             int64_t num_groups, const GpuModel& gpu, const GatherableTiles& gatherable,
                                             bool may_split = true);

}  // namespace tangram::schedule
