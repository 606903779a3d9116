// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// GridPlan: a step under the strategies that split ranks into a grid of row groups x head ranks: Ulysses, HCMS, Ring,
// AllGather, USP and LoongTrain differ in the shape of the grid and in how K/V blocks travel between row groups.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram {

/// How the K/V blocks of row groups reach the others.
enum class RowMove : int {
  kNone = 0,  ///< there is one row group
  kRing,      ///< one block a step, from row group to row group
  kGather,    ///< all blocks at once
};

/// One step of a row group: attention of its queries with one K/V block, or with all other blocks at once (kGather).
struct GridStep {
  int block = 0;   ///< the row group that owns the block; -1: every other one, keys in global rows
  int posted = 0;  ///< the step before whose compute the block is sent for; it is then held as that step's block
  int source = 0;  ///< the row group that sends the block, and where this one sends the block of step `posted`
  int target = 0;
  int grad_source = 0;  ///< backward: from where dk and dv come after this step, and where they go
  int grad_target = 0;
  /// Queries in rows of the group, keys in rows of the block.
  std::vector<AttnSlice> slices;
  int64_t area = 0;

  friend bool operator==(const GridStep&, const GridStep&) = default;
};

/// Rank r is number r % head_ranks of row group r / head_ranks. The ranks of a row group hold its rows between them;
/// after the head exchange each has all of them, in global order, for its share of the heads. With fewer K/V heads than
/// head ranks neighbours share a K/V head, and each is sent a copy of it.
struct GridPlan {
  int head_ranks = 1;
  int row_groups = 1;
  RowMove row_move = RowMove::kNone;
  /// K/V heads of each chunk that a rank exchanges and computes, one after the other.
  std::vector<int> head_chunks;
  /// Steps of each row group; empty under Tangram's own strategy.
  std::vector<std::vector<GridStep>> steps;

  bool empty() const { return steps.empty(); }

  friend bool operator==(const GridPlan&, const GridPlan&) = default;
};

}  // namespace tangram
