// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/movement_calls.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram {

namespace {

/// Remote queries of a stage by head group, rows of the buffer: they lie in global order, so group after group. A
/// segment may hold the last rows of one group and the first of the next.
std::vector<Range> fetched_rows_of_groups(const MovementRank& rank, size_t stage, int64_t seqlen, int head_groups) {
  std::vector<Range> rows(static_cast<size_t>(head_groups));
  for (const RowSegment& segment : rank.q_segments) {
    if (static_cast<size_t>(segment.stage) != stage) continue;
    for (int64_t begin = segment.global.begin; begin < segment.global.end;) {
      const int64_t group = begin / seqlen;
      const int64_t end = std::min(segment.global.end, (group + 1) * seqlen);
      const Range piece = Range{begin, end}.shifted(segment.row - segment.global.begin);
      Range& of_group = rows.at(static_cast<size_t>(group));
      TANGRAM_ASSERT(of_group.empty() || of_group.end == piece.begin);
      of_group = hull(of_group, piece);
      begin = end;
    }
  }
  return rows;
}

/// Parts of slices in query rows `rows`, counted from there. One that was joined from slices of two head groups, whose
/// rows touch, is cut again.
std::vector<AttnSlice> slices_of(const std::vector<AttnSlice>& slices, Range rows) {
  std::vector<AttnSlice> result;
  for (const AttnSlice& slice : slices) {
    const AttnSlice part = rows.contains(slice.q_range) ? slice : cut_rows(slice, rows);
    if (!part.q_range.empty()) result.push_back(shifted(part, -rows.begin, 0));
  }
  return result;
}

/// Raises `last`, by stage the last one that sees a key row which it fetched, by what the rank does.
void raise_last_uses(const MovementRank& rank, std::vector<size_t>& last) {
  const auto after = [](int64_t row, const RowSegment& segment) { return row < segment.row; };
  // Keys come in stage 1 at the earliest, and every stage uses its own.
  for (size_t s = 2; s < rank.stages.size(); ++s) {
    for (const auto* slices : {&rank.stages[s].own_slices, &rank.stages[s].moved_slices}) {
      for (const AttnSlice& slice : *slices) {
        auto segment = std::upper_bound(rank.kv_segments.begin(), rank.kv_segments.end(), slice.k_range.begin, after);
        TANGRAM_ASSERT(segment != rank.kv_segments.begin());
        for (--segment; segment != rank.kv_segments.end() && segment->row < slice.k_range.end; ++segment) {
          size_t& last_use = last.at(static_cast<size_t>(segment->stage));
          last_use = std::max(last_use, s);
        }
      }
    }
  }
}

}  // namespace

std::vector<MovementCall> movement_calls(const Plan& plan, const MovementRank& rank) {
  const int head_groups = plan.movement()->head_groups;
  const int64_t q_rows = plan.q_dispatch.rows_per_rank();
  std::vector<MovementCall> calls;
  const auto add = [&](size_t stage, bool fetched, int group, Range rows) {
    const MovementStage& tables = rank.stages[stage];
    std::vector<AttnSlice> slices = slices_of(fetched ? tables.moved_slices : tables.own_slices, rows);
    const bool initialises = fetched || stage == 0;
    if (rows.empty() || (slices.empty() && !initialises)) return;
    calls.push_back({stage, fetched, group, rows, std::move(slices)});
  };
  for (size_t s = 0; s < rank.stages.size(); ++s) {
    const std::vector<Range> fetched = fetched_rows_of_groups(rank, s, plan.q_dispatch.seqlen(), head_groups);
    for (int group = 0; group < head_groups; ++group) add(s, false, group, {group * q_rows, (group + 1) * q_rows});
    for (int group = 0; group < head_groups; ++group) add(s, true, group, fetched[static_cast<size_t>(group)]);
  }
  return calls;
}

std::vector<MovementStep> movement_steps(const std::vector<MovementRank>& pass) {
  std::vector<MovementStep> steps(pass.front().stages.size());
  std::vector<size_t> last_use(steps.size());
  for (size_t s = 0; s < steps.size(); ++s) last_use[s] = s;
  for (const MovementRank& rank : pass) {
    TANGRAM_ASSERT(rank.stages.size() == steps.size());
    for (size_t s = 0; s < steps.size(); ++s) {
      steps[s].moves_q = steps[s].moves_q || !rank.stages[s].q.recvs.empty();
      steps[s].moves_kv = steps[s].moves_kv || !rank.stages[s].kv.recvs.empty();
    }
    raise_last_uses(rank, last_use);
  }
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].moves_kv) steps[last_use[s]].complete_kv.push_back(s);
  }
  return steps;
}

}  // namespace tangram
