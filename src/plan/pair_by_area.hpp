// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A start for the dispatch of masks with shared prefixes (trees), whose chunks differ in area from row to row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tangram {

/// The rank of each chunk; equally many chunks for each rank. `areas`: of the chunks, in row order; `cp_size` divides
/// their number.
///
/// Chunks above the mean area and the others form two sequences in row order. Each rank in turn takes the next chunks
/// of both, as many of each as bring the area of all ranks so far closest to its share. So a rank holds few runs, which
/// lie near each other, and areas differ by about one chunk.
std::vector<int> pair_by_area(std::span<const int64_t> areas, int cp_size);

}  // namespace tangram
