// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How long a dealing takes, by a simulation of the multiprocessors and penalties for what leaves the L2 cache.
#pragma once

#include <span>
#include <vector>

#include "machine/gpu_model.hpp"
#include "schedule/dealing.hpp"

namespace tangram::schedule {

inline constexpr double kItemCost = 2;  ///< what an item costs beside its steps, in steps

/// What items dealt together may touch before it leaves the L2 cache: fitted as 128 MiB on an H200, which has 60.
inline double cached_bytes(const GpuModel& gpu) { return static_cast<double>(gpu.l2_bytes) * 32 / 15; }

/// Steps of one of `pieces` of an item. Pieces that are dealt together end together, and slow each other down when they
/// join.
double steps_of(const Extent& item, const AttnShape& shape, int pieces, bool together);

/// A mask on a GPU. `arrives`: see choose_dealing.
struct Setting {
  const Extents& extents;
  const AttnShape& shape;
  GpuModel gpu;
  std::span<const double> arrives;
};

/// Steps until the last multiprocessor is done.
double makespan(const Setting& in, const Dealing& how);

/// Queries, dout and the sums of dq of a query head.
double head_bytes(const AttnShape& shape);

/// Queries that the longest item visits, in whole tiles.
double longest_rows(const Extents& extents);

/// Whether even equal items are long enough to fall out of step, and their queries out of the cache.
bool drifts_slowly(const Setting& in);

/// What to multiply a makespan by. Where items that meet have unequal lengths (length_spread), the multiprocessors
/// drift apart over the query heads of an item, and with them their queries and dq out of the L2 cache. Fitted to
/// measurements of 16 dealings of 28 masks (docs/design/backward_dealing.md).
double cache_penalty(const Setting& in, double spread, const Dealing& how);

}  // namespace tangram::schedule
