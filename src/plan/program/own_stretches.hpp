// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which of a rank's own K/V rows kernels read where they lie, and which have to be copied into the K/V buffer.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/key_stretch.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// The rank's own rows in stretches as long as they get: rows of the K/V buffer that are neighbours in the shard too.
std::vector<KeyStretch> own_stretches(const RankPlan& rank, int self);

/// Those of `own` of which more than the borders would be spared.
std::vector<KeyStretch> worth_reading(const std::vector<KeyStretch>& own, int64_t border);

/// What of `own` must be copied when `read` are read where they lie: the borders of those, and all others.
std::vector<KeyStretch> to_copy(const std::vector<KeyStretch>& own, const std::vector<KeyStretch>& read,
                                int64_t border);

}  // namespace tangram
