// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/runs.hpp"

#include <algorithm>
#include <bit>
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
  for (std::vector<AttnSlice>& of_rank : slices_of_rank) of_rank.reserve(slices.size() / slices_of_rank.size() + 1);
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

namespace {

// The union of unordered ranges that lie on a coarse grid, as blocks of keys do: counted in its cells instead of
// sorted. False where the grid is not coarse.
bool join_on_grid(std::vector<Range>& ranges) {
  constexpr int64_t kMostCells = 8;  // for a range: about what sorting it takes
  int64_t last = 0;                  // the end of all, at which the last cell may be cut
  for (const Range& range : ranges) last = std::max(last, range.end);
  uint64_t borders = 0;
  for (const Range& range : ranges) {
    borders |= static_cast<uint64_t>(range.begin) | (range.end < last ? static_cast<uint64_t>(range.end) : 0);
  }
  if (borders == 0) return false;
  const int shift = std::countr_zero(borders);
  const int64_t num_cells = ((last - 1) >> shift) + 1;
  if (num_cells > kMostCells * std::ssize(ranges)) return false;
  std::vector<int32_t> changes(static_cast<size_t>(num_cells) + 1);  // of how many ranges hold a cell
  for (const Range& range : ranges) {
    ++changes[static_cast<size_t>(range.begin >> shift)];
    --changes[static_cast<size_t>(((range.end - 1) >> shift) + 1)];
  }
  ranges.clear();
  int32_t count = 0;
  for (size_t cell = 0; cell < changes.size(); ++cell) {
    const int32_t before = count;
    count += changes[cell];
    if (before == 0 && count > 0) ranges.push_back({static_cast<int64_t>(cell) << shift, 0});
    if (before > 0 && count == 0) ranges.back().end = std::min(static_cast<int64_t>(cell) << shift, last);
  }
  return true;
}

}  // namespace

void join_ranges(std::vector<Range>& ranges) {
  if (!std::is_sorted(ranges.begin(), ranges.end())) {
    if (join_on_grid(ranges)) return;
    std::sort(ranges.begin(), ranges.end());
  }
  size_t num_kept = 0;
  for (const Range& range : ranges) {
    if (num_kept > 0 && range.begin <= ranges[num_kept - 1].end) {
      ranges[num_kept - 1].end = std::max(ranges[num_kept - 1].end, range.end);
    } else {
      ranges[num_kept++] = range;
    }
  }
  ranges.resize(num_kept);
}

std::vector<Range> needed_keys(const std::vector<AttnSlice>& slices) {
  std::vector<Range> keys;
  keys.reserve(slices.size());
  // Slices come in row order, so that in most masks their keys come nearly sorted and join at once.
  for (const AttnSlice& slice : slices) append_range(keys, slice.k_range);
  join_ranges(keys);
  return keys;
}

}  // namespace tangram
