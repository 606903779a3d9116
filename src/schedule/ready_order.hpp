// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Orders the work of a tile list so that what is computed first needs keys that are there first.
#pragma once

#include <cstdint>
#include <span>

#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// `ready_flags`: the awaited keys, in the order in which they come. Moves the `first_wave` work tiles with the most
/// keys that are already there to the front. Their runs are cut into whole key tiles, sorted by arrival; the number of
/// tiles does not grow. All other work tiles keep their place among each other and their runs. The list stands for the
/// same mask as before. O(work tiles + runs * log(ready flags)) plus the cuts.
void order_by_readiness(TileList& tiles, std::span<const KeyReadyFlag> ready_flags, int64_t first_wave);

}  // namespace tangram::schedule
