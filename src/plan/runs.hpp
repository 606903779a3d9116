// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where the rows of a dispatch lie, as runs in global order.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/plan.hpp"
#include "tangram/shard_map.hpp"

namespace tangram {

/// The end of the run of chunks of one rank that begins at `chunk`.
int64_t end_of_run(const Dispatch& dispatch, int64_t chunk);

/// All runs, sorted by global row, neighbouring chunks of one owner joined. They cover the sequence.
std::vector<OwnedRun> owned_runs(const Dispatch& dispatch);

/// Per rank the rows' visible cells as canonical slices: query rows in shard coordinates, keys still global.
std::vector<std::vector<AttnSlice>> cut_by_rank(const Mask& mask, const std::vector<OwnedRun>& q_runs, int cp_size);

/// The union of the slices' key ranges: sorted, disjoint, touching ones joined. Exactly the keys that the slices see,
/// because a canonical slice shows every column of its range.
std::vector<Range> needed_keys(const std::vector<AttnSlice>& slices);

}  // namespace tangram
