// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Brings areas under a limit by exchanges of rows, where a short search has left few of them above it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/row_areas.hpp"
#include "plan/run_list.hpp"

namespace tangram {

/// Exchanges chunks of the rank with the largest area for equally many of the rank with the smallest. They come from
/// ends of the runs whose rows differ most, so that few move. Ends where no area is above `limit`, or where chunks are
/// too large for that. Each rank keeps its number of chunks. O(runs) an exchange.
void exchange_areas(std::vector<RankRun>& map, const RowAreas& areas, int64_t chunk_size, int cp_size, int64_t limit);

}  // namespace tangram
