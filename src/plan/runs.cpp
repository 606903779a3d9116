// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/runs.hpp"

#include <algorithm>
#include <utility>

namespace tangram {

std::vector<OwnedRun> owned_runs(const Dispatch& dispatch) {
  std::vector<OwnedRun> runs;
  std::vector<int64_t> next_row(static_cast<size_t>(dispatch.cp_size));
  runs.reserve(dispatch.rank_of_chunk.runs().size());
  int64_t begin = 0;
  for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) {
    int64_t& row = next_row[static_cast<size_t>(run.rank)];
    runs.push_back({{begin * dispatch.chunk_size, run.end * dispatch.chunk_size}, run.rank, row});
    row += runs.back().global.size();
    begin = run.end;
  }
  return runs;
}

PlanRuns runs_of(const Plan& plan) {
  std::vector<OwnedRun> q = owned_runs(plan.q_dispatch);
  std::vector<OwnedRun> k = plan.q_dispatch == plan.k_dispatch ? q : owned_runs(plan.k_dispatch);
  return {std::move(q), std::move(k)};
}

std::vector<std::vector<AttnSlice>> cut_by_rank(const Mask& mask, const std::vector<OwnedRun>& q_runs, int cp_size) {
  std::vector<std::vector<AttnSlice>> slices_of_rank(static_cast<size_t>(cp_size));
  const std::span<const AttnSlice> slices = mask.slices();  // sorted by first query row
  std::vector<size_t> active;
  size_t next = 0;
  for (const OwnedRun& run : q_runs) {
    for (; next < slices.size() && slices[next].q_range.begin < run.global.end; ++next) active.push_back(next);
    std::vector<AttnSlice>& out = slices_of_rank[static_cast<size_t>(run.owner)];
    size_t num_kept = 0;
    for (const size_t index : active) {
      const AttnSlice& slice = slices[index];
      const int64_t q_offset = run.row - run.global.begin;
      const AttnSlice piece = run.global.contains(slice.q_range) ? slice : cut_rows(slice, run.global);
      out.push_back(shifted(piece, q_offset, 0));
      if (slice.q_range.end > run.global.end) active[num_kept++] = index;
    }
    active.resize(num_kept);
  }
  return slices_of_rank;
}

std::vector<Range> needed_keys(const std::vector<AttnSlice>& slices) {
  std::vector<Range> keys;
  keys.reserve(slices.size());
  for (const AttnSlice& slice : slices) {
    // Slices come in row order, so that in most masks their keys come nearly sorted and join at once.
    if (!keys.empty() && keys.back().begin <= slice.k_range.begin && slice.k_range.begin <= keys.back().end) {
      keys.back().end = std::max(keys.back().end, slice.k_range.end);
    } else {
      keys.push_back(slice.k_range);
    }
  }
  if (!std::is_sorted(keys.begin(), keys.end())) std::sort(keys.begin(), keys.end());
  size_t num_kept = 0;
  for (const Range& range : keys) {
    if (num_kept > 0 && range.begin <= keys[num_kept - 1].end) {
      keys[num_kept - 1].end = std::max(keys[num_kept - 1].end, range.end);
    } else {
      keys[num_kept++] = range;
    }
  }
  keys.resize(num_kept);
  return keys;
}

}  // namespace tangram
