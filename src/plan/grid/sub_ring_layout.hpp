// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HybridCP before there are exchanges and slices: which documents share which ring, how many rows move in each, and
// the work of every step. All that a prediction needs, without a whole plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/clock/clock.hpp"
#include "plan/grid/documents.hpp"
#include "plan/runs.hpp"

namespace tangram {

/// K/V rows of one shard that move together.
struct SubRingPart {
  int64_t rows = 0;
  std::vector<Range> ranges;  ///< of the shard, sorted, not touching each other
};

/// Keys of a document that one rank owns.
struct SubRingKeys {
  Range global;
  int owner = 0;
  size_t level = 0;
  int64_t row = 0;       ///< in the owner's shard
  int64_t part_row = 0;  ///< among what moves with it
};

struct SubRingLayout {
  std::vector<int> sizes;                       ///< sub_group_sizes; a level is a place in it
  std::vector<size_t> level_of_document;        ///< of the smallest sub-group that holds its rows
  std::vector<SubGroupLevel> levels;            ///< those that documents share
  std::vector<std::vector<SubRingPart>> parts;  ///< [level][owner]; nothing moves at level 0
  std::vector<SubRingKeys> keys;                ///< of all documents, sorted by row

  /// Number of steps: the ranks of the largest sub-group in use.
  int num_steps() const { return levels.empty() ? 1 : levels.back().ranks; }
  bool moves(size_t level, int step) const { return step < sizes[level]; }
  /// The rank `distance` places further in the ring of `level`.
  int neighbour(size_t level, int rank, int distance) const {
    const int size = sizes[level], first = rank / size * size;
    return first + ((rank - first + distance) % size + size) % size;
  }
  const SubRingPart& part(size_t level, int owner) const { return parts[level][static_cast<size_t>(owner)]; }
  /// Rows that `rank` works with at `level` in `step` > 0.
  const SubRingPart& part_in_step(size_t level, int rank, int step) const {
    return part(level, neighbour(level, rank, -step));
  }
  /// Rows of the rank's buffer in `step` > 0 that come before those of `level`; all of them for the level after the
  /// last.
  int64_t rows_before(size_t level, int rank, int step) const;
  int64_t rows_in_step(int rank, int step) const { return rows_before(sizes.size(), rank, step); }
  /// Rows whose gradients come home to the rank after `step`.
  int64_t rows_home(int rank, int step) const;
};

/// `documents` in rows (find_documents with unit 1). O(documents + pieces).
SubRingLayout lay_out_sub_rings(const std::vector<MaskDocument>& documents, const std::vector<OwnedRun>& q_runs,
                                const std::vector<OwnedRun>& k_runs, int cp_size);

/// Calls visit(step, slice, keys that it sees) for what `rank` computes, from its slices with keys in global rows
/// (cut_by_rank).
template <class Visit>
void for_each_sub_ring_piece(const SubRingLayout& layout, int rank, const std::vector<AttnSlice>& slices,
                             const Visit& visit) {
  for (const AttnSlice& slice : slices) {
    auto keys = std::upper_bound(layout.keys.begin(), layout.keys.end(), slice.k_range.begin,
                                 [](int64_t row, const SubRingKeys& k) { return row < k.global.end; });
    for (; keys != layout.keys.end() && keys->global.begin < slice.k_range.end; ++keys) {
      const int size = layout.sizes[keys->level];
      const int step = ((rank - keys->owner) % size + size) % size;
      visit(step, keys->global.contains(slice.k_range) ? slice : cut_columns(slice, keys->global), *keys);
    }
  }
}

/// Input of the cost model for a rank's step.
struct SubRingLoad {
  int64_t area = 0;
  int64_t rows = 0;       ///< of the K/V buffer, where it is not the shard
  int64_t rows_home = 0;  ///< whose gradients come home afterwards
};
/// Loads of every rank, in the order of steps.
using SubRingLoads = std::vector<std::vector<SubRingLoad>>;
SubRingLoads count_sub_ring_loads(const Mask& mask, const SubRingLayout& layout, const std::vector<OwnedRun>& q_runs,
                                  int cp_size);

/// Rings of different sub-groups do not wait for each other: each rank's steps, one after the other.
std::vector<RankTime> sub_ring_times(const DistAttnConfig& config, const SubRingLoads& loads, int64_t q_rows,
                                     AttnPass pass, ClockTrace* trace = nullptr);
/// Predicted seconds on the slowest rank.
PredictedTime predict_sub_rings(const DistAttnConfig& config, const SubRingLoads& loads, int64_t q_rows);
/// Bytes in closed form. Every key row of a document that several ranks share reaches the other ranks; its gradients
/// make as many hops and end at home.
GridTraffic sub_ring_traffic(const DistAttnConfig& config, const std::vector<SubGroupLevel>& levels);

/// Predicted time of the HybridCP plan over these rows.
PredictedTime predict_hybrid_cp(const Mask& mask, const DistAttnConfig& config, const AssignedRows& rows);

}  // namespace tangram
