// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// GridPlan: a step of the strategies that split ranks into a grid of row groups x head ranks. Ulysses, HCMS, Ring,
// AllGather, USP, LoongTrain and HybridCP differ in the grid's shape and in how K/V blocks move between row groups.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/exchange.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// How the K/V blocks of row groups reach the others.
enum class RowMove : int {
  kNone = 0,  ///< there is one row group
  kRing,      ///< one block a step, from row group to row group
  kGather,    ///< all blocks at once
  kSubRings,  ///< the rows of a document round a ring of the ranks that share it
};

/// Part of a rank in a step of kSubRings. A document's K/V rows visit the ranks of a sub-group; the rings of all
/// sub-groups advance together. Step t uses rows of the rank t places before in each ring.
struct SubRingStep {
  /// Rows of the step's K/V buffer: the parts of rings that still go on, by size of ring. In step 0 these are the
  /// shard.
  int64_t rows = 0;
  /// Exchanges that bring these rows. Step 1: from the neighbour's shard, one exchange for each ring size. Later steps:
  /// one, from the neighbour's buffer of the step before. Read from step t + 1, it is also how the gradients of step t
  /// go on.
  std::vector<Exchange> casts;
  /// Gradients that have been everywhere, from the buffer of this step to the owner, where they lie one after the
  /// other.
  Exchange home;
  /// Rows of the own shard whose gradients come home after this step, in the order in which they come.
  std::vector<Range> home_rows;

  friend bool operator==(const SubRingStep&, const SubRingStep&) = default;
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
  SubRingStep sub_rings;  ///< kSubRings, where a row group is a rank

  friend bool operator==(const GridStep&, const GridStep&) = default;
};

/// The documents that sub-groups of so many ranks share.
struct SubGroupLevel {
  int ranks = 1;
  int64_t num_documents = 0;
  int64_t q_rows = 0;
  int64_t k_rows = 0;

  friend bool operator==(const SubGroupLevel&, const SubGroupLevel&) = default;
};

/// Rank r is number r % ulysses_degree of row group r / ulysses_degree. The ranks of a row group hold its rows
/// together. After the head exchange each has all of them, in global order, for its share of the heads. With fewer K/V
/// heads than head ranks neighbours share a K/V head, and each is sent a copy of it.
struct GridPlan {
  int ulysses_degree = 1;
  int row_groups = 1;
  RowMove row_move = RowMove::kNone;
  /// K/V heads of each chunk that a rank exchanges and computes, one after the other.
  std::vector<int> head_chunks;
  /// kSubRings: by size of sub-group, the sub-groups that share documents.
  std::vector<SubGroupLevel> levels;
  std::vector<std::vector<GridStep>> steps;  // of each row group

  friend bool operator==(const GridPlan&, const GridPlan&) = default;
};

}  // namespace tangram
