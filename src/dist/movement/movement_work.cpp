// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/movement/movement_work.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "tangram/flex_attention.hpp"

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

/// The slices of query rows `rows`, from there on.
std::vector<AttnSlice> slices_of(const std::vector<AttnSlice>& slices, Range rows) {
  std::vector<AttnSlice> result;
  for (const AttnSlice& slice : slices) {
    if (!rows.contains(slice.q_range.begin)) continue;
    TANGRAM_ASSERT(rows.contains(slice.q_range));
    result.push_back(shifted(slice, -rows.begin, 0));
  }
  return result;
}

/// The last stage that sees a key row which stage `stage` fetched on the rank.
class LastUse {
 public:
  explicit LastUse(const MovementRank& rank) : last_(rank.stages.size()) {
    for (size_t s = 0; s < rank.stages.size(); ++s) {
      last_[s] = s;
      for (const auto* slices : {&rank.stages[s].own_slices, &rank.stages[s].moved_slices}) {
        for (const AttnSlice& slice : *slices) use(rank.kv_segments, slice.k_range, s);
      }
    }
  }
  size_t operator[](size_t stage) const { return last_[stage]; }

 private:
  void use(const std::vector<RowSegment>& segments, Range keys, size_t stage) {
    const auto after = [](int64_t row, const RowSegment& segment) { return row < segment.row; };
    auto segment = std::upper_bound(segments.begin(), segments.end(), keys.begin, after);
    TANGRAM_ASSERT(segment != segments.begin());
    for (--segment; segment != segments.end() && segment->row < keys.end; ++segment) {
      size_t& last = last_.at(static_cast<size_t>(segment->stage));
      last = std::max(last, stage);
    }
  }

  std::vector<size_t> last_;
};

}  // namespace

MovementWork make_movement_work(const RankContext& context, const std::vector<MovementRank>& pass, int head_groups) {
  const HeadConfig& heads = context.plan->config.heads;
  const int64_t q_rows = context.plan->q_dispatch.rows_per_rank();
  MovementWork work;
  work.tables = &pass[static_cast<size_t>(context.rank)];
  const MovementRank& rank = *work.tables;
  for (const RowSegment& segment : rank.kv_segments) {
    work.segments.push_back(
        {segment.global, segment.row, segment.owner, segment.owner_row, segment.stage, segment.stage});
  }
  work.steps.resize(rank.stages.size());
  const auto add_call = [&](size_t stage, bool fetched, int group, Range rows) {
    const MovementStage& tables = rank.stages[stage];
    const std::vector<AttnSlice> slices = slices_of(fetched ? tables.moved_slices : tables.own_slices, rows);
    const bool initialises = fetched || stage == 0;
    if (rows.empty() || (slices.empty() && !initialises)) return;
    const AttnShape shape{rows.size(),
                          rank.kv_rows,
                          heads.num_heads_q / head_groups,
                          heads.num_heads_kv / head_groups,
                          heads.head_dim,
                          heads.head_dim_v,
                          heads.dtype};
    work.steps[stage].calls.push_back({fetched, group, rows, prepare_slices(*context.backend, slices, shape)});
  };
  for (size_t s = 0; s < rank.stages.size(); ++s) {
    const std::vector<Range> fetched = fetched_rows_of_groups(rank, s, context.plan->q_dispatch.seqlen(), head_groups);
    for (int group = 0; group < head_groups; ++group) add_call(s, false, group, {group * q_rows, (group + 1) * q_rows});
    for (int group = 0; group < head_groups; ++group) add_call(s, true, group, fetched[static_cast<size_t>(group)]);
    work.lends_q = work.lends_q || !rank.stages[s].q.sends.empty();
    work.lends_kv = work.lends_kv || !rank.stages[s].kv.sends.empty();
  }
  std::vector<size_t> last_use(rank.stages.size());
  for (const MovementRank& other : pass) {
    TANGRAM_ASSERT(other.stages.size() == rank.stages.size());
    const LastUse last(other);
    for (size_t s = 0; s < other.stages.size(); ++s) {
      work.steps[s].moves_q = work.steps[s].moves_q || !other.stages[s].q.recvs.empty();
      work.steps[s].moves_kv = work.steps[s].moves_kv || !other.stages[s].kv.recvs.empty();
      last_use[s] = std::max(last_use[s], last[s]);
    }
  }
  for (size_t s = 0; s < last_use.size(); ++s) {
    if (work.steps[s].moves_kv) work.steps[last_use[s]].complete_kv.push_back(s);
  }
  return work;
}

}  // namespace tangram
