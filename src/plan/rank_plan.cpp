// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/rank_plan.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "plan/runs.hpp"

namespace tangram {

namespace {

// Pieces of K/V that all ranks together may need, 24 GB of tables: a causal mask over some 9,000 ranks, or a window
// over 65,536. Without a bound a plan of 65,536 ranks that all see each other would ask for more than a terabyte.
constexpr int64_t kMostSegments = int64_t{1} << 27;
constexpr size_t kFewRanks = 1024;  // never have as many, unless rows are sharded one by one

void require_few_segments(const std::vector<std::vector<AttnSlice>>& slices, const std::vector<OwnedRun>& k_runs) {
  int64_t num_segments = 0;
  for (const std::vector<AttnSlice>& of_rank : slices) {
    for (const Range& keys : needed_keys(of_rank)) {
      const auto ends_before = [](const OwnedRun& run, int64_t key) { return run.global.end <= key; };
      const auto first = std::lower_bound(k_runs.begin(), k_runs.end(), keys.begin, ends_before);
      num_segments += std::lower_bound(first, k_runs.end(), keys.end - 1, ends_before) - first + 1;
    }
  }
  require(num_segments <= kMostSegments,
          "make_plan: the ranks may receive K/V in at most {} pieces altogether; simulate looks at more ranks without "
          "their tables (got {} pieces, cp_size={})",
          kMostSegments, num_segments, slices.size());
}

// The needed keys, cut where the owner changes, with buffer rows counted through.
std::vector<KvSegment> make_segments(const std::vector<Range>& needed, const std::vector<OwnedRun>& k_runs) {
  std::vector<KvSegment> segments;
  int64_t row = 0;
  auto run = k_runs.begin();
  for (const Range& keys : needed) {
    run = std::upper_bound(run, k_runs.end(), keys.begin,
                           [](int64_t key, const OwnedRun& r) { return key < r.global.end; });
    for (auto at = run; at != k_runs.end() && at->global.begin < keys.end; ++at) {
      const Range part = intersect(keys, at->global);
      segments.push_back({part, row, at->owner, at->row + (part.begin - at->global.begin), 0, 0});
      row += part.size();
    }
  }
  return segments;
}

}  // namespace

void move_keys_to_buffer(std::vector<AttnSlice>& slices, const std::vector<Range>& needed) {
  std::vector<int64_t> first_row(needed.size());
  for (size_t i = 1; i < needed.size(); ++i) first_row[i] = first_row[i - 1] + needed[i - 1].size();
  size_t at = 0;
  for (AttnSlice& slice : slices) {
    const int64_t key = slice.k_range.begin;
    if (!needed[at].contains(key)) {
      at = static_cast<size_t>(std::upper_bound(needed.begin(), needed.end(), key,
                                                [](int64_t k, const Range& range) { return k < range.end; }) -
                               needed.begin());
    }
    slice = shifted(slice, 0, first_row[at] - needed[at].begin);
  }
}

std::vector<RankPlan> make_rank_plans(const Mask& mask, const Dispatch& q_dispatch, const Dispatch& k_dispatch) {
  const std::vector<OwnedRun> q_runs = owned_runs(q_dispatch);
  const std::vector<OwnedRun> k_runs = q_dispatch == k_dispatch ? q_runs : owned_runs(k_dispatch);
  std::vector<std::vector<AttnSlice>> slices = cut_by_rank(mask, q_runs, q_dispatch.cp_size);
  if (slices.size() > kFewRanks) require_few_segments(slices, k_runs);
  std::vector<RankPlan> ranks(slices.size());
  int64_t total_area = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankPlan& rank = ranks[r];
    const std::vector<Range> needed = needed_keys(slices[r]);
    rank.segments = make_segments(needed, k_runs);
    move_keys_to_buffer(slices[r], needed);
    rank.slices = merge_touching(std::move(slices[r]));
    for (const AttnSlice& slice : rank.slices) rank.area += area(slice);
    for (const KvSegment& segment : rank.segments) {
      rank.kv_rows += segment.global.size();
      if (segment.owner != static_cast<int>(r)) rank.remote_kv_rows += segment.global.size();
    }
    total_area += rank.area;
  }
  TANGRAM_ASSERT(total_area == mask.area());
  return ranks;
}

}  // namespace tangram
