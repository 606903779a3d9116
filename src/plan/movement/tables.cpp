// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What follows from the work of every rank: rows that it needs, where they lie, exchanges, stages.
#include <algorithm>

#include "core/require.hpp"
#include "plan/movement/movement.hpp"
#include "plan/rank_plan.hpp"

namespace tangram {

namespace {

const OwnedRun& run_at(const std::vector<OwnedRun>& runs, int64_t row) {
  return *std::upper_bound(runs.begin(), runs.end(), row,
                           [](int64_t r, const OwnedRun& run) { return r < run.global.end; });
}

// The needed rows cut where the owner changes, in global order; buffer rows are counted through.
std::vector<RowSegment> segments_of(const std::vector<Range>& needed, const std::vector<OwnedRun>& runs, int self) {
  std::vector<RowSegment> segments;
  int64_t row = 0;
  for (const Range& rows : needed) {
    for (const OwnedRun* run = &run_at(runs, rows.begin); run != runs.data() + runs.size(); ++run) {
      const Range part = intersect(rows, run->global);
      if (part.empty()) break;
      segments.push_back(
          {part, row, run->owner, run->row + (part.begin - run->global.begin), run->owner == self ? 0 : 1});
      row += part.size();
    }
  }
  return segments;
}

std::vector<Range> needed_queries(const std::vector<AttnSlice>& slices) {
  std::vector<AttnSlice> turned;
  turned.reserve(slices.size());
  for (const AttnSlice& slice : slices) turned.push_back({{}, slice.q_range});
  return needed_keys(turned);
}

int64_t count_rows(const std::vector<RowSegment>& segments) {
  return segments.empty() ? 0 : segments.back().row + segments.back().global.size();
}

int64_t count_remote(const std::vector<RowSegment>& segments, int self) {
  int64_t rows = 0;
  for (const RowSegment& segment : segments) rows += segment.owner == self ? 0 : segment.global.size();
  return rows;
}

void append_copy(std::vector<RowCopy>& copies, const RowCopy& copy) {
  if (!copies.empty()) {
    RowCopy& last = copies.back();
    if (last.peer == copy.peer && last.rows.end == copy.rows.begin &&
        last.peer_row + last.rows.size() == copy.peer_row) {
      last.rows.end = copy.rows.end;
      return;
    }
  }
  copies.push_back(copy);
}

// Shard order and buffer order within a stage both follow the global order, so that both sides list the same pieces in
// the same order and join the same neighbours.
void fill_exchanges(std::vector<MovementRank>& ranks, std::vector<RowSegment> MovementRank::* segments_member,
                    Exchange MovementStage::* exchange_member) {
  std::vector<const RowSegment*> remote;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    remote.clear();
    for (const RowSegment& segment : ranks[static_cast<size_t>(r)].*segments_member) {
      if (segment.owner != r) remote.push_back(&segment);
    }
    std::stable_sort(remote.begin(), remote.end(), [](auto* a, auto* b) { return a->owner < b->owner; });
    for (const RowSegment* segment : remote) {
      const size_t stage = static_cast<size_t>(segment->stage);
      const int64_t num_rows = segment->global.size();
      append_copy((ranks[static_cast<size_t>(r)].stages[stage].*exchange_member).recvs,
                  {segment->owner, {segment->row, segment->row + num_rows}, segment->owner_row});
      append_copy((ranks[static_cast<size_t>(segment->owner)].stages[stage].*exchange_member).sends,
                  {r, {segment->owner_row, segment->owner_row + num_rows}, segment->row});
    }
  }
}

// Slices in (shard row, buffer row) or (remote-q buffer row, buffer row) to the stages of what they see.
void deal_to_stages(MovementRank& rank, std::vector<AttnSlice> own, std::vector<AttnSlice> moved) {
  MovementStage& local = rank.stages[0];
  MovementStage& remote = rank.stages[1];
  // Buffer rows that are local, or remote, as wide as possible.
  std::vector<RowSegment> stripes;
  for (const RowSegment& segment : rank.kv_segments) {
    if (!stripes.empty() && stripes.back().stage == segment.stage) {
      stripes.back().global.end += segment.global.size();
    } else {
      const Range rows{segment.row, segment.row + segment.global.size()};
      stripes.push_back({rows, segment.row, 0, 0, segment.stage});
    }
  }
  for (const AttnSlice& slice : own) {
    auto stripe = std::upper_bound(stripes.begin(), stripes.end(), slice.k_range.begin,
                                   [](int64_t row, const RowSegment& s) { return row < s.global.end; });
    for (; stripe != stripes.end() && stripe->global.begin < slice.k_range.end; ++stripe) {
      const AttnSlice piece = stripe->global.contains(slice.k_range) ? slice : cut_columns(slice, stripe->global);
      if (!piece.q_range.empty()) (stripe->stage == 0 ? local : remote).own_slices.push_back(piece);
    }
  }
  remote.moved_slices = merge_touching(std::move(moved));
  for (MovementStage* stage : {&local, &remote}) {
    stage->own_slices = merge_touching(std::move(stage->own_slices));
    for (const AttnSlice& slice : stage->own_slices) stage->area += area(slice);
    for (const AttnSlice& slice : stage->moved_slices) stage->area += area(slice);
    rank.area += stage->area;
  }
}

}  // namespace

std::vector<OwnedRun> flattened_runs(const Dispatch& dispatch, int head_groups) {
  const std::vector<OwnedRun> runs = owned_runs(dispatch);
  std::vector<OwnedRun> result;
  result.reserve(runs.size() * static_cast<size_t>(head_groups));
  for (int g = 0; g < head_groups; ++g) {
    for (const OwnedRun& run : runs) {
      result.push_back({run.global.shifted(g * dispatch.seqlen()), run.owner, run.row + g * dispatch.rows_per_rank()});
    }
  }
  return result;
}

std::vector<MovementRank> movement_tables(RankWork work, const std::vector<OwnedRun>& q_runs,
                                          const std::vector<OwnedRun>& k_runs) {
  std::vector<MovementRank> ranks(work.size());
  for (int r = 0; r < static_cast<int>(work.size()); ++r) {
    MovementRank& rank = ranks[static_cast<size_t>(r)];
    std::vector<AttnSlice>& slices = work[static_cast<size_t>(r)];
    const std::vector<Range> keys = needed_keys(slices);
    rank.kv_segments = segments_of(keys, k_runs, r);
    rank.kv_rows = count_rows(rank.kv_segments);
    rank.remote_kv_rows = count_remote(rank.kv_segments, r);
    move_keys_to_buffer(slices, keys);
    std::vector<AttnSlice> own, moved;
    for (const AttnSlice& slice : slices) {
      const OwnedRun& run = run_at(q_runs, slice.q_range.begin);
      if (run.owner == r) {
        own.push_back(shifted(slice, run.row - run.global.begin, 0));
      } else {
        moved.push_back(slice);
      }
    }
    const std::vector<Range> queries = needed_queries(moved);
    rank.q_segments = segments_of(queries, q_runs, r);
    rank.remote_q_rows = count_rows(rank.q_segments);
    for (AttnSlice& slice : moved) {
      const RowSegment& segment =
          *std::upper_bound(rank.q_segments.begin(), rank.q_segments.end(), slice.q_range.begin,
                            [](int64_t row, const RowSegment& s) { return row < s.global.end; });
      TANGRAM_ASSERT(segment.global.contains(slice.q_range));
      slice = shifted(slice, segment.row - segment.global.begin, 0);
    }
    rank.stages.resize(2);
    deal_to_stages(rank, std::move(own), std::move(moved));
  }
  fill_exchanges(ranks, &MovementRank::q_segments, &MovementStage::q);
  fill_exchanges(ranks, &MovementRank::kv_segments, &MovementStage::kv);
  return ranks;
}

}  // namespace tangram
