// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Checks of plans against what they must be, row by row and cell by cell. Only slices' definitions and their algebra
// (tested in core) are shared with the planner.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "reference/cells.hpp"
#include "tangram/plan.hpp"

namespace tangram::reference {

/// Keys that a rank's queries see, as a bitmap, from every single query row.
inline std::vector<char> seen_keys(const Mask& mask, const Dispatch& q_dispatch, int rank) {
  std::vector<int> delta(static_cast<size_t>(mask.seqlen_k()) + 1);
  size_t first = 0;
  const auto slices = mask.slices();
  for (int64_t i = 0; i < mask.seqlen_q(); ++i) {
    if (q_dispatch.rank_of_chunk[static_cast<size_t>(i / q_dispatch.chunk_size)] != rank) continue;
    while (first < slices.size() && slices[first].q_range.end <= i) ++first;
    for (size_t s = first; s < slices.size() && slices[s].q_range.begin <= i; ++s) {
      if (slices[s].q_range.end <= i) continue;
      const Range keys = slices[s].keys_of(i);
      if (keys.empty()) continue;
      ++delta[static_cast<size_t>(keys.begin)];
      --delta[static_cast<size_t>(keys.end)];
    }
  }
  std::vector<char> seen(static_cast<size_t>(mask.seqlen_k()));
  int depth = 0;
  for (size_t j = 0; j < seen.size(); ++j) {
    depth += delta[j];
    seen[j] = depth > 0;
  }
  return seen;
}

/// Local slices with their cells put back where they are in the mask.
inline std::vector<AttnSlice> to_global(const std::vector<AttnSlice>& slices, const std::vector<Range>& q_rows,
                                        const std::vector<KvSegment>& segments) {
  std::vector<AttnSlice> result;
  for (const AttnSlice& slice : slices) {
    int64_t q_row = 0;
    for (const Range& rows : q_rows) {
      const AttnSlice by_rows = cut_rows(slice, {q_row, q_row + rows.size()});
      if (!by_rows.q_range.empty()) {
        auto first = std::lower_bound(segments.begin(), segments.end(), by_rows.k_range.begin + 1,
                                      [](const KvSegment& s, int64_t row) { return s.row + s.global.size() < row; });
        for (; first != segments.end() && first->row < by_rows.k_range.end; ++first) {
          const KvSegment& segment = *first;
          const AttnSlice piece = cut_columns(by_rows, {segment.row, segment.row + segment.global.size()});
          if (piece.q_range.empty()) continue;
          result.push_back(shifted(piece, rows.begin - q_row, segment.global.begin - segment.row));
        }
      }
      q_row += rows.size();
    }
  }
  return result;
}

inline int64_t total_area(const std::vector<AttnSlice>& slices) {
  int64_t sum = 0;
  for (const AttnSlice& slice : slices) sum += area(slice);
  return sum;
}

/// Expects that the slices of all ranks show exactly the cells of the mask, none twice.
inline void expect_covers(const Mask& mask, const std::vector<AttnSlice>& pieces) {
  if (mask.seqlen_q() * mask.seqlen_k() <= 1 << 16) {
    EXPECT_EQ(Cells(mask.seqlen_q(), mask.seqlen_k(), pieces), Cells(mask.seqlen_q(), mask.seqlen_k(), mask.slices()));
    return;
  }
  // Disjoint, as many cells as the mask, and each inside it: exactly the mask.
  EXPECT_EQ(find_overlap(pieces).first, -1);
  EXPECT_EQ(total_area(pieces), mask.area());
  int64_t inside = 0;
  for (const AttnSlice& piece : pieces) {
    for (const AttnSlice& slice : mask.slices()) {
      if (slice.q_range.begin >= piece.q_range.end) break;
      if (slice.q_range.end > piece.q_range.begin) inside += area(intersect(piece, slice));
    }
  }
  EXPECT_EQ(inside, mask.area());
}

/// Expects the segments of a rank to be sorted, gapless and right about owners, and to hold exactly the seen keys.
inline void expect_segments(const Plan& plan, int rank) {
  const RankPlan& own = plan.ranks()[static_cast<size_t>(rank)];
  std::vector<std::vector<Range>> rows_of;
  for (int r = 0; r < plan.cp_size(); ++r) rows_of.push_back(plan.k_dispatch.rows_of_rank(r));
  std::vector<char> held(static_cast<size_t>(plan.mask.seqlen_k()));
  int64_t row = 0;
  int64_t last_end = 0;
  int64_t remote = 0;
  for (const KvSegment& segment : own.segments) {
    ASSERT_EQ(segment.row, row);
    ASSERT_GE(segment.global.begin, last_end);
    ASSERT_FALSE(segment.global.empty());
    int64_t owner_row = 0;
    bool found = false;
    for (const Range& rows : rows_of.at(static_cast<size_t>(segment.owner))) {
      if (rows.contains(segment.global)) {
        found = true;
        ASSERT_EQ(segment.owner_row, owner_row + segment.global.begin - rows.begin);
      }
      owner_row += rows.size();
    }
    ASSERT_TRUE(found);
    std::fill(held.begin() + segment.global.begin, held.begin() + segment.global.end, 1);
    row += segment.global.size();
    last_end = segment.global.end;
    const bool local = segment.owner == rank;
    if (!local) remote += segment.global.size();
    ASSERT_EQ(segment.stage_fwd == 0, local);
    ASSERT_EQ(segment.stage_bwd == 0, local);
  }
  EXPECT_EQ(own.kv_rows, row);
  EXPECT_EQ(own.remote_kv_rows, remote);
  EXPECT_TRUE(held == seen_keys(plan.mask, plan.q_dispatch, rank)) << "rank " << rank;
}

/// Expects the exchanges of one stage to be sorted, mirrored, and to bring exactly the rows of the stage's segments.
inline void expect_exchange(const Plan& plan, size_t stage, bool forward) {
  const auto exchange_of = [&](int rank) -> const Exchange& {
    const RankPlan& own = plan.ranks()[static_cast<size_t>(rank)];
    return (forward ? own.forward : own.backward).at(stage).exchange;
  };
  for (int r = 0; r < plan.cp_size(); ++r) {
    const Exchange& exchange = exchange_of(r);
    for (const auto* copies : {&exchange.sends, &exchange.recvs}) {
      ASSERT_TRUE(std::is_sorted(copies->begin(), copies->end()));
      for (size_t i = 0; i < copies->size(); ++i) {
        const RowCopy& copy = (*copies)[i];
        ASSERT_NE(copy.peer, r);
        ASSERT_FALSE(copy.rows.empty());
        if (i > 0 && (*copies)[i - 1].peer == copy.peer) {
          ASSERT_LE((*copies)[i - 1].rows.end, copy.rows.begin);
        }
      }
    }
    // Mirror: my recvs from p are p's sends to me, in order.
    for (int p = 0; p < plan.cp_size(); ++p) {
      std::vector<RowCopy> from;
      for (const RowCopy& copy : exchange.recvs) {
        if (copy.peer == p) from.push_back({r, {copy.peer_row, copy.peer_row + copy.rows.size()}, copy.rows.begin});
      }
      std::vector<RowCopy> to;
      for (const RowCopy& copy : exchange_of(p).sends) {
        if (copy.peer == r) to.push_back(copy);
      }
      ASSERT_EQ(from, to) << "stage " << stage << " from " << p << " to " << r;
    }
    // Every remote row of the stage arrives from its owner's row.
    const RankPlan& own = plan.ranks()[static_cast<size_t>(r)];
    int64_t rows_of_stage = 0;
    for (const KvSegment& segment : own.segments) {
      if (segment.owner == r) continue;
      if (static_cast<size_t>(forward ? segment.stage_fwd : segment.stage_bwd) != stage) continue;
      rows_of_stage += segment.global.size();
      bool arrives = false;
      for (const RowCopy& copy : exchange.recvs) {
        arrives |= copy.peer == segment.owner &&
                   copy.rows.contains(Range{segment.row, segment.row + segment.global.size()}) &&
                   copy.peer_row + segment.row - copy.rows.begin == segment.owner_row;
      }
      ASSERT_TRUE(arrives);
    }
    ASSERT_EQ(exchange.rows_received(), rows_of_stage);
  }
}

/// Expects the stages of a pass to partition the rank's work, each seeing only rows that it or an earlier one brought.
inline void expect_stages(const Plan& plan, int rank, bool forward) {
  const RankPlan& own = plan.ranks()[static_cast<size_t>(rank)];
  const std::vector<Stage>& stages = forward ? own.forward : own.backward;
  ASSERT_FALSE(stages.empty());
  EXPECT_TRUE(stages[0].exchange.sends.empty() && stages[0].exchange.recvs.empty());
  std::vector<AttnSlice> all;
  for (size_t s = 0; s < stages.size(); ++s) {
    EXPECT_EQ(total_area(stages[s].slices), stages[s].area);
    for (const AttnSlice& slice : stages[s].slices) {
      ASSERT_EQ(slice, canonical(slice));
      ASSERT_TRUE((Range{0, plan.q_dispatch.rows_per_rank()}.contains(slice.q_range)));
      ASSERT_TRUE((Range{0, own.kv_rows}.contains(slice.k_range)));
      for (const KvSegment& segment : own.segments) {
        if (intersect(slice.k_range, {segment.row, segment.row + segment.global.size()}).empty()) continue;
        ASSERT_EQ(static_cast<size_t>(forward ? segment.stage_fwd : segment.stage_bwd), s);
      }
      all.push_back(slice);
    }
  }
  expect_covers(Mask(plan.q_dispatch.rows_per_rank(), own.kv_rows, own.slices), all);
}

/// Everything that must hold for any plan.
inline void expect_valid(const Plan& plan) {
  std::vector<AttnSlice> global;
  ASSERT_EQ(static_cast<int>(plan.ranks().size()), plan.cp_size());
  for (int r = 0; r < plan.cp_size(); ++r) {
    const RankPlan& own = plan.ranks()[static_cast<size_t>(r)];
    const std::vector<Range> rows = plan.q_dispatch.rows_of_rank(r);
    int64_t num_rows = 0;
    for (const Range& range : rows) num_rows += range.size();
    ASSERT_EQ(num_rows * plan.cp_size(), plan.mask.seqlen_q());
    ASSERT_NO_FATAL_FAILURE(expect_segments(plan, r));
    EXPECT_EQ(total_area(own.slices), own.area);
    const std::vector<AttnSlice> mine = to_global(own.slices, rows, own.segments);
    global.insert(global.end(), mine.begin(), mine.end());
    ASSERT_EQ(own.forward.size(), plan.ranks()[0].forward.size());
    ASSERT_EQ(own.backward.size(), plan.ranks()[0].backward.size());
    ASSERT_NO_FATAL_FAILURE(expect_stages(plan, r, true));
    ASSERT_NO_FATAL_FAILURE(expect_stages(plan, r, false));
  }
  expect_covers(plan.mask, global);
  for (size_t s = 0; s < plan.ranks()[0].forward.size(); ++s) ASSERT_NO_FATAL_FAILURE(expect_exchange(plan, s, true));
  for (size_t s = 0; s < plan.ranks()[0].backward.size(); ++s) ASSERT_NO_FATAL_FAILURE(expect_exchange(plan, s, false));
}

}  // namespace tangram::reference
