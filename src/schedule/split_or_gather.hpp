// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Items in parts (query_parts.hpp) or gathered runs (gather_runs.hpp): no forward kernel takes both.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/gather_runs.hpp"
#include "schedule/query_parts.hpp"

namespace tangram::schedule {

/// At most one of them.
struct SplitOrGathered {
  std::optional<PartList> parts;
  std::optional<GatheredList> gathered;
};

/// What makes the multiprocessor that ends last end sooner, as predicted, where items could be split and runs be
/// gathered; `can_gather`: the kernel can. Each item runs once for each of `num_groups` groups of heads.
SplitOrGathered split_or_gather(const TileList& tiles, const AttnShape& shape, int64_t num_groups, const GpuModel& gpu,
                                bool can_gather);

}  // namespace tangram::schedule
