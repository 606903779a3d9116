// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where the rows of a dispatch lie, as runs in global order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tangram/plan.hpp"
#include "tangram/shard_map.hpp"

namespace tangram {

/// All runs, sorted by global row, neighbouring chunks of one owner joined. They cover the sequence.
std::vector<OwnedRun> owned_runs(const Dispatch& dispatch);

/// Runs of queries and keys, found once: there may be a chunk for each row.
struct PlanRuns {
  std::vector<OwnedRun> q;
  std::vector<OwnedRun> k;
};
PlanRuns runs_of(const Plan& plan);

/// Calls visit(run index, piece) for the visible cells of the mask in every run of queries, in row order.
template <class Visit>
void for_each_row_piece(const Mask& mask, const std::vector<OwnedRun>& q_runs, const Visit& visit) {
  const std::span<const AttnSlice> slices = mask.slices();  // sorted by first query row
  std::vector<size_t> active;
  size_t next = 0;
  for (size_t i = 0; i < q_runs.size(); ++i) {
    const Range rows = q_runs[i].global;
    for (; next < slices.size() && slices[next].q_range.begin < rows.end; ++next) active.push_back(next);
    size_t num_kept = 0;
    for (const size_t index : active) {
      const AttnSlice& slice = slices[index];
      visit(i, rows.contains(slice.q_range) ? slice : cut_rows(slice, rows));
      if (slice.q_range.end > rows.end) active[num_kept++] = index;
    }
    active.resize(num_kept);
  }
}

/// Calls visit(run index, part) for the part of a slice in the keys of each run that it meets, unless that is empty.
template <class Visit>
void for_each_key_part(const AttnSlice& slice, const std::vector<OwnedRun>& k_runs, const Visit& visit) {
  auto run = std::upper_bound(k_runs.begin(), k_runs.end(), slice.k_range.begin,
                              [](int64_t row, const OwnedRun& candidate) { return row < candidate.global.end; });
  for (; run != k_runs.end() && run->global.begin < slice.k_range.end; ++run) {
    const AttnSlice part = run->global.contains(slice.k_range) ? slice : cut_columns(slice, run->global);
    if (!part.q_range.empty()) visit(static_cast<size_t>(run - k_runs.begin()), part);
  }
}

/// Work of every rank: canonical slices in flattened global rows, disjoint, each inside one run of queries.
using RankWork = std::vector<std::vector<AttnSlice>>;

/// Per rank the rows' visible cells as canonical slices: query rows in shard coordinates, keys still global.
std::vector<std::vector<AttnSlice>> cut_by_rank(const Mask& mask, const std::vector<OwnedRun>& q_runs, int cp_size);

/// Adds a range to those of a union, at once to the last one where it continues that.
inline void append_range(std::vector<Range>& ranges, const Range& range) {
  if (!ranges.empty() && ranges.back().begin <= range.begin && range.begin <= ranges.back().end) {
    ranges.back().end = std::max(ranges.back().end, range.end);
  } else {
    ranges.push_back(range);
  }
}
/// Sorts the ranges of a union and joins those that meet or touch. None is empty.
void join_ranges(std::vector<Range>& ranges);

/// The union of the slices' key ranges: sorted, disjoint, touching ones joined. Exactly the keys that the slices see,
/// because a canonical slice shows every column of its range.
std::vector<Range> needed_keys(const std::vector<AttnSlice>& slices);

}  // namespace tangram
