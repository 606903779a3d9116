// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The mask as the kernels walk it. One axis is in vector lanes (queries forward, keys backward) and is cut into tiles.
// For each tile the steps, rows of the other axis that some lane sees, are listed compactly. So fully masked steps are
// neither read nor computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram::cpu {

inline constexpr int kTileLanes = 128;
inline constexpr int kMaxSteps = 96;

/// Consecutive visible steps of a tile.
struct StepBlock {
  int num_steps = 0;
  bool full = false;             // every lane of the tile sees every step; `lanes` is not filled then
  int64_t ordinal = 0;           // 0, 1, .. within the tile
  int64_t rows[kMaxSteps];       // row of each step, ascending
  uint64_t lanes[2][kMaxSteps];  // bit l of word w: lane 64 * w + l sees the step
};

/// Rows of one tile and where its pieces lie.
struct LaneTile {
  Range rows;
  int64_t piece_begin = 0;
  int64_t piece_end = 0;
  int64_t union_begin = 0;
  int64_t union_end = 0;
  int64_t area = 0;
};

class TileIndex {
 public:
  /// Lanes are the query rows of `slices`, `num_lanes` of them.
  TileIndex(std::span<const AttnSlice> slices, int64_t num_lanes);

  std::span<const LaneTile> tiles() const { return tiles_; }
  /// The slices of a tile: cut to its rows, canonical, sorted by first step.
  std::span<const AttnSlice> pieces(const LaneTile& tile) const;
  /// The steps that the tile sees, as disjoint ranges in order.
  std::span<const Range> steps(const LaneTile& tile) const;
  int64_t memory_bytes() const {
    return static_cast<int64_t>(tiles_.capacity() * sizeof(LaneTile) + pieces_.capacity() * sizeof(AttnSlice) +
                                unions_.capacity() * sizeof(Range));
  }
  /// Sets `seen[l]` for the lanes of the tile that see something.
  void find_seen_lanes(const LaneTile& tile, bool* seen) const;

 private:
  std::vector<LaneTile> tiles_;
  std::vector<AttnSlice> pieces_;
  std::vector<Range> unions_;
};

/// The slices with queries and keys exchanged.
std::vector<AttnSlice> transposed(std::span<const AttnSlice> slices);

/// Walks the steps of a tile block by block.
class StepWalker {
 public:
  /// Blocks have at most `max_steps` steps and, when `grid > 0`, do not cross its multiples.
  StepWalker(const TileIndex& index, const LaneTile& tile, int max_steps, int64_t grid);
  /// Fills the next block; false at the end.
  bool next(StepBlock& block);

 private:
  int collect(StepBlock& block);
  void mark(StepBlock& block);

  const LaneTile& tile_;
  std::span<const AttnSlice> pieces_;
  std::span<const Range> ranges_;
  int max_steps_;
  int64_t grid_;
  size_t range_idx_ = 0;
  size_t first_piece_ = 0;
  int64_t cursor_ = 0;
  int64_t num_blocks_ = 0;
};

}  // namespace tangram::cpu
