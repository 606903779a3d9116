// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/movement/rank_tables.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "plan/rank_plan.hpp"

namespace tangram {

namespace {

constexpr int64_t kCutAlignment = 128;  // the height of a kernel tile

template <class Runs>
auto run_at(const Runs& runs, int64_t row) {
  return std::upper_bound(runs.begin(), runs.end(), row, [](int64_t r, const auto& run) { return r < run.global.end; });
}

// Finds a row's run from a hint that is likely to be near: of head groups there are many runs, and rows come in order.
template <class Iterator>
Iterator run_near(Iterator begin, Iterator end, Iterator hint, int64_t row) {
  const auto ends_before = [row](const auto& run) { return run.global.end <= row; };
  if (hint == end || hint->global.begin > row) return std::partition_point(begin, hint, ends_before);
  std::ptrdiff_t step = 1;
  while (end - hint > step && ends_before(hint[step])) {
    hint += step;
    step *= 2;
  }
  return std::partition_point(hint, end - hint > step ? hint + step + 1 : end, ends_before);
}

// The needed rows cut where the owner changes, in global order. Buffer rows are not set; remote rows are in stage 1.
std::vector<RowSegment> segments_of(const std::vector<Range>& needed, const std::vector<OwnedRun>& runs, int self) {
  std::vector<RowSegment> segments;
  segments.reserve(needed.size());
  auto run = runs.begin();
  for (const Range& rows : needed) {
    run = run_near(runs.begin(), runs.end(), run, rows.begin);
    for (; run != runs.end() && run->global.begin < rows.end; ++run) {
      const Range part = intersect(rows, run->global);
      segments.push_back(
          {part, 0, run->owner, run->row + (part.begin - run->global.begin), run->owner == self ? 0 : 1});
      if (run->global.end >= rows.end) break;
    }
  }
  return segments;
}

// Counts buffer rows through and joins neighbours that may be one segment. Returns the number of rows.
int64_t lay_out(std::vector<RowSegment>& segments) {
  int64_t row = 0;
  size_t num_kept = 0;
  for (RowSegment segment : segments) {
    segment.row = row;
    row += segment.global.size();
    if (num_kept > 0) {
      RowSegment& last = segments[num_kept - 1];
      if (last.stage == segment.stage && last.owner == segment.owner && last.global.end == segment.global.begin &&
          last.owner_row + last.global.size() == segment.owner_row) {
        last.global.end = segment.global.end;
        continue;
      }
    }
    segments[num_kept++] = segment;
  }
  segments.resize(num_kept);
  return row;
}

// The part of a segment in `rows`, in another stage.
RowSegment part_of(const RowSegment& segment, Range rows, int stage) {
  return {rows, 0, segment.owner, segment.owner_row + (rows.begin - segment.global.begin), stage};
}

// Splits the segments for which in_group holds into stages 1 .. num_stages of about equally many rows, in order.
template <class InGroup>
void split_in_order(std::vector<RowSegment>& segments, int num_stages, const InGroup& in_group) {
  int64_t total = 0;
  for (const RowSegment& segment : segments) total += in_group(segment) ? segment.global.size() : 0;
  std::vector<RowSegment> result;
  result.reserve(segments.size() + static_cast<size_t>(num_stages));
  int64_t done = 0;
  int stage = 1;
  for (const RowSegment& segment : segments) {
    if (!in_group(segment)) {
      result.push_back(segment);
      continue;
    }
    Range rest = segment.global;
    while (stage < num_stages && done + rest.size() > total * stage / num_stages) {
      int64_t cut = rest.begin + (total * stage / num_stages - done);
      const int64_t aligned = (cut + kCutAlignment / 2) / kCutAlignment * kCutAlignment;
      if (total / num_stages >= 8 * kCutAlignment) cut = std::clamp(aligned, rest.begin, rest.end);
      if (cut > rest.begin) result.push_back(part_of(segment, {rest.begin, cut}, stage));
      done += cut - rest.begin;
      rest.begin = cut;
      ++stage;
    }
    done += rest.size();
    if (!rest.empty()) result.push_back(part_of(segment, rest, stage));
  }
  segments = std::move(result);
}

// Remote K/V rows come in the first stage that needs them for moved queries. Rows that own queries alone see are
// spread.
void stage_keys(std::vector<RowSegment>& segments, const std::vector<std::vector<AttnSlice>>& moved, int num_stages) {
  constexpr int kUnknown = -1;
  std::vector<std::vector<Range>> needed;
  std::vector<int64_t> cuts;
  for (const std::vector<AttnSlice>& slices : moved) {
    needed.push_back(needed_keys(slices));
    for (const Range& range : needed.back()) cuts.insert(cuts.end(), {range.begin, range.end});
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<std::vector<Range>::const_iterator> at;  // in the keys of each stage; keys are asked for in order
  for (const std::vector<Range>& keys : needed) at.push_back(keys.begin());
  const auto first_stage = [&](int64_t key) {
    for (size_t s = 0; s < needed.size(); ++s) {
      while (at[s] != needed[s].end() && at[s]->end <= key) ++at[s];
      if (at[s] != needed[s].end() && at[s]->begin <= key) return static_cast<int>(s) + 1;
    }
    return kUnknown;
  };
  std::vector<RowSegment> result;
  result.reserve(segments.size() + cuts.size());
  auto cut = cuts.cbegin();
  for (const RowSegment& segment : segments) {
    if (segment.stage == 0) {
      result.push_back(segment);
      continue;
    }
    Range rest = segment.global;
    while (!rest.empty()) {
      while (cut != cuts.cend() && *cut <= rest.begin) ++cut;
      const int64_t end = cut == cuts.cend() ? rest.end : std::min(*cut, rest.end);
      result.push_back(part_of(segment, {rest.begin, end}, first_stage(rest.begin)));
      rest.begin = end;
    }
  }
  split_in_order(result, num_stages, [](const RowSegment& segment) { return segment.stage == kUnknown; });
  segments = std::move(result);
}

// Moved slices, in global query rows, by the stage that brings their queries, in rows of the remote-q buffer.
std::vector<std::vector<AttnSlice>> stage_queries(MovementRank& rank, const std::vector<AttnSlice>& moved, int self,
                                                  const std::vector<OwnedRun>& q_runs, int num_stages) {
  std::vector<RowSegment>& segments = rank.q_segments;
  segments = segments_of(needed_queries(moved), q_runs, self);
  split_in_order(segments, num_stages, [](const RowSegment&) { return true; });
  rank.remote_q_rows = lay_out(segments);
  std::vector<std::vector<AttnSlice>> by_stage(static_cast<size_t>(num_stages));
  auto near = segments.cbegin();
  for (const AttnSlice& slice : moved) {
    near = run_near(segments.cbegin(), segments.cend(), near, slice.q_range.begin);
    for (auto at = near; at != segments.cend() && at->global.begin < slice.q_range.end; ++at) {
      const AttnSlice piece = at->global.contains(slice.q_range) ? slice : cut_rows(slice, at->global);
      if (piece.q_range.empty()) continue;
      by_stage[static_cast<size_t>(at->stage) - 1].push_back(shifted(piece, at->row - at->global.begin, 0));
    }
  }
  return by_stage;
}

// Buffer rows of one stage, as wide as possible.
struct Stripe {
  Range rows;
  int stage = 0;
};

// Own slices, in shard rows and buffer rows, to the stages of the keys that they see.
void assign_own(MovementRank& rank, const std::vector<AttnSlice>& own) {
  std::vector<Stripe> stripes;
  for (const RowSegment& segment : rank.kv_segments) {
    const int64_t end = segment.row + segment.global.size();
    if (!stripes.empty() && stripes.back().stage == segment.stage) {
      stripes.back().rows.end = end;
    } else {
      stripes.push_back({{segment.row, end}, segment.stage});
    }
  }
  for (const AttnSlice& slice : own) {
    auto stripe = std::upper_bound(stripes.begin(), stripes.end(), slice.k_range.begin,
                                   [](int64_t row, const Stripe& s) { return row < s.rows.end; });
    for (; stripe != stripes.end() && stripe->rows.begin < slice.k_range.end; ++stripe) {
      const AttnSlice piece = stripe->rows.contains(slice.k_range) ? slice : cut_columns(slice, stripe->rows);
      if (!piece.q_range.empty()) rank.stages[static_cast<size_t>(stripe->stage)].own_slices.push_back(piece);
    }
  }
}

}  // namespace

MovementRank rank_tables(std::vector<AttnSlice> slices, int self, const std::vector<OwnedRun>& q_runs,
                         const std::vector<OwnedRun>& k_runs, int num_stages) {
  MovementRank rank;
  const std::vector<Range> keys = needed_keys(slices);
  std::vector<AttnSlice> own, moved;
  auto near = q_runs.begin();
  for (const AttnSlice& slice : slices) {
    near = run_near(q_runs.begin(), q_runs.end(), near, slice.q_range.begin);
    const OwnedRun& run = *near;
    TANGRAM_ASSERT(run.global.contains(slice.q_range));
    if (run.owner == self) {
      own.push_back(shifted(slice, run.row - run.global.begin, 0));
    } else {
      moved.push_back(slice);
    }
  }
  std::vector<std::vector<AttnSlice>> moved_by_stage = stage_queries(rank, moved, self, q_runs, num_stages);
  rank.kv_segments = segments_of(keys, k_runs, self);
  stage_keys(rank.kv_segments, moved_by_stage, num_stages);
  rank.kv_rows = lay_out(rank.kv_segments);
  for (const RowSegment& segment : rank.kv_segments) {
    if (segment.owner != self) rank.remote_kv_rows += segment.global.size();
  }
  rank.stages.resize(static_cast<size_t>(num_stages) + 1);
  move_keys_to_buffer(own, keys);
  assign_own(rank, own);
  for (size_t s = 0; s < moved_by_stage.size(); ++s) {
    move_keys_to_buffer(moved_by_stage[s], keys);
    rank.stages[s + 1].moved_slices = merge_touching(std::move(moved_by_stage[s]));
  }
  for (MovementStage& stage : rank.stages) {
    stage.own_slices = merge_touching(std::move(stage.own_slices));
    for (const AttnSlice& slice : stage.own_slices) stage.area += area(slice);
    for (const AttnSlice& slice : stage.moved_slices) stage.area += area(slice);
    rank.area += stage.area;
  }
  return rank;
}

}  // namespace tangram
