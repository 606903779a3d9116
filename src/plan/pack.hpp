// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Packing of a mask's blocks (documents) into ranks: our dispatch for one setting of its two knobs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram {

/// Chunks `[begin, end)` that belong together: a block of the mask or a part of one.
struct ChunkRun {
  int begin = 0;
  int end = 0;

  int size() const { return end - begin; }
};

/// Input of packing: chunk areas with their prefix sums, and the blocks that cover all chunks in order.
struct PackProblem {
  int cp_size = 1;
  std::vector<int64_t> areas;   // [num_chunks]
  std::vector<int64_t> prefix;  // [num_chunks + 1]
  std::vector<ChunkRun> blocks;

  int num_chunks() const { return static_cast<int>(areas.size()); }
  int per_rank() const { return num_chunks() / cp_size; }
  int64_t area(const ChunkRun& run) const {
    return prefix[static_cast<size_t>(run.end)] - prefix[static_cast<size_t>(run.begin)];
  }
};

/// The knobs.
struct PackSetting {
  /// Blocks of at least this many chunks are packed whole where they fit; smaller ones are filling.
  int min_whole = 0;
  /// Filling whose density differs by less than this factor keeps its sequence order; 0 keeps it throughout, values
  /// up to 1 sort by density alone.
  double density_step = 2;
};

/// Query rows that no slice connects with their neighbours become a block. Rows of several slices that see ever more of
/// the same keys become one too. A chunk over a border belongs to the rows before it: the last rows of a causal
/// document need all of it, the first need nothing.
PackProblem make_pack_problem(std::span<const AttnSlice> slices, int64_t chunk_size, int64_t num_chunks, int cp_size);

/// The rank of each chunk; equally many chunks for each rank. Deterministic.
std::vector<int> pack(const PackProblem& problem, const PackSetting& setting);

}  // namespace tangram
