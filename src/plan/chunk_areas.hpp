// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Area of every chunk, in time proportional to slices + chunks however many chunks a slice spans.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram {

/// Visible cells in the query rows of each chunk. Slices must be canonical.
std::vector<int64_t> chunk_areas(std::span<const AttnSlice> slices, int64_t chunk_size, int64_t num_chunks);

}  // namespace tangram
