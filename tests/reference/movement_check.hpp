// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Checks of movement plans by playing them: rows are numbers that move through the exchanges as an executor would
// move them, and every slice is read back in the rows that arrived.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "reference/cells.hpp"
#include "tangram/plan.hpp"

namespace tangram::reference {

constexpr int64_t kNothing = -1;

/// The flattened rows of every shard, by number.
inline std::vector<std::vector<int64_t>> flattened_shards(const Dispatch& dispatch, int head_groups) {
  std::vector<std::vector<int64_t>> shards;
  for (int r = 0; r < dispatch.cp_size; ++r) {
    shards.emplace_back();
    for (int g = 0; g < head_groups; ++g) {
      for (const Range& rows : dispatch.rows_of_rank(r)) {
        for (int64_t row = rows.begin; row < rows.end; ++row) shards.back().push_back(g * dispatch.seqlen() + row);
      }
    }
  }
  return shards;
}

/// Casts rows of `shards` into `buffers`. Expects every row to land where nothing is yet, and both sides to list the
/// same pieces.
inline void play_cast(const std::vector<const Exchange*>& exchanges, const std::vector<std::vector<int64_t>>& shards,
                      std::vector<std::vector<int64_t>>& buffers) {
  for (size_t r = 0; r < exchanges.size(); ++r) {
    for (const auto* copies : {&exchanges[r]->sends, &exchanges[r]->recvs}) {
      ASSERT_TRUE(std::is_sorted(copies->begin(), copies->end()));
      for (size_t i = 0; i < copies->size(); ++i) {
        ASSERT_NE((*copies)[i].peer, static_cast<int>(r));
        ASSERT_FALSE((*copies)[i].rows.empty());
        if (i > 0 && (*copies)[i - 1].peer == (*copies)[i].peer) {
          ASSERT_LE((*copies)[i - 1].rows.end, (*copies)[i].rows.begin);
        }
      }
    }
    for (const RowCopy& copy : exchanges[r]->sends) {
      std::vector<int64_t>& buffer = buffers.at(static_cast<size_t>(copy.peer));
      for (int64_t i = 0; i < copy.rows.size(); ++i) {
        int64_t& target = buffer.at(static_cast<size_t>(copy.peer_row + i));
        ASSERT_EQ(target, kNothing) << "a row arrives twice";
        target = shards[r].at(static_cast<size_t>(copy.rows.begin + i));
      }
    }
    // Mirror: my recvs from p are p's sends to me, in order.
    for (size_t p = 0; p < exchanges.size(); ++p) {
      std::vector<RowCopy> from, to;
      for (const RowCopy& copy : exchanges[r]->recvs) {
        if (copy.peer != static_cast<int>(p)) continue;
        from.push_back({static_cast<int>(r), {copy.peer_row, copy.peer_row + copy.rows.size()}, copy.rows.begin});
      }
      for (const RowCopy& copy : exchanges[p]->sends) {
        if (copy.peer == static_cast<int>(r)) to.push_back(copy);
      }
      ASSERT_EQ(from, to) << "from " << p << " to " << r;
    }
  }
}

/// Expects segments without gaps, sorted within each stage, that name the rows of `shards`; those of `self` are put
/// into `buffer`. Returns the number of remote rows.
inline int64_t play_segments(const std::vector<RowSegment>& segments, int self, int num_stages,
                             const std::vector<std::vector<int64_t>>& shards, std::vector<int64_t>& buffer) {
  int64_t row = 0, remote = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& segment = segments[i];
    EXPECT_EQ(segment.row, row);
    EXPECT_FALSE(segment.global.empty());
    EXPECT_EQ(segment.stage == 0, segment.owner == self);
    EXPECT_LT(segment.stage, num_stages);
    for (int64_t n = 0; n < segment.global.size(); ++n) {
      EXPECT_EQ(shards.at(static_cast<size_t>(segment.owner)).at(static_cast<size_t>(segment.owner_row + n)),
                segment.global.begin + n);
      if (segment.owner == self) buffer.at(static_cast<size_t>(row + n)) = segment.global.begin + n;
    }
    row += segment.global.size();
    if (segment.owner != self) remote += segment.global.size();
  }
  EXPECT_EQ(row, static_cast<int64_t>(buffer.size()));
  return remote;
}

/// Plays one pass of small masks (one for every head group, or one for all) and expects the invariants of MovementPlan.
inline void expect_movement_pass(const Plan& plan, const std::vector<MovementRank>& ranks,
                                 const std::vector<Mask>& masks) {
  const int groups = plan.movement()->head_groups;
  const int cp_size = plan.cp_size();
  ASSERT_EQ(static_cast<int>(ranks.size()), cp_size);
  const int64_t rows_q = plan.q_dispatch.seqlen(), rows_k = plan.k_dispatch.seqlen();
  const auto q_shards = flattened_shards(plan.q_dispatch, groups);
  const auto k_shards = flattened_shards(plan.k_dispatch, groups);
  std::vector<std::vector<int64_t>> q_buffers, kv_buffers;
  const size_t num_stages = ranks[0].stages.size();
  for (const MovementRank& rank : ranks) {
    ASSERT_EQ(rank.stages.size(), num_stages);
    q_buffers.emplace_back(static_cast<size_t>(rank.remote_q_rows), kNothing);
    kv_buffers.emplace_back(static_cast<size_t>(rank.kv_rows), kNothing);
  }
  for (int r = 0; r < cp_size; ++r) {
    const MovementRank& rank = ranks[static_cast<size_t>(r)];
    const size_t n = static_cast<size_t>(r);
    EXPECT_EQ(play_segments(rank.kv_segments, r, static_cast<int>(num_stages), k_shards, kv_buffers[n]),
              rank.remote_kv_rows);
    EXPECT_EQ(play_segments(rank.q_segments, r, static_cast<int>(num_stages), q_shards, q_buffers[n]),
              rank.remote_q_rows);
    EXPECT_TRUE(std::is_sorted(rank.kv_segments.begin(), rank.kv_segments.end(),
                               [](auto& a, auto& b) { return a.global < b.global; }));
    EXPECT_TRUE(std::is_sorted(rank.q_segments.begin(), rank.q_segments.end(), [](auto& a, auto& b) {
      return std::pair(a.stage, a.global) < std::pair(b.stage, b.global);
    }));
    ASSERT_TRUE(rank.stages[0].q == Exchange{} && rank.stages[0].kv == Exchange{});
    ASSERT_TRUE(rank.stages[0].moved_slices.empty());
  }

  std::vector<Cells> cells(static_cast<size_t>(groups), Cells(rows_q, rows_k));
  std::vector<std::vector<char>> q_used, kv_used;
  std::vector<std::vector<size_t>> q_stage;  // the stage that computed a remote query
  for (size_t r = 0; r < ranks.size(); ++r) {
    q_used.emplace_back(q_buffers[r].size());
    kv_used.emplace_back(kv_buffers[r].size());
    q_stage.emplace_back(q_buffers[r].size());
  }
  for (size_t s = 0; s < num_stages; ++s) {
    std::vector<const Exchange*> q, kv;
    for (const MovementRank& rank : ranks) {
      q.push_back(&rank.stages[s].q);
      kv.push_back(&rank.stages[s].kv);
    }
    ASSERT_NO_FATAL_FAILURE(play_cast(q, q_shards, q_buffers));
    ASSERT_NO_FATAL_FAILURE(play_cast(kv, k_shards, kv_buffers));
    for (size_t r = 0; r < ranks.size(); ++r) {
      const MovementStage& stage = ranks[r].stages[s];
      int64_t stage_area = 0;
      const auto compute = [&](const AttnSlice& slice, const std::vector<int64_t>& queries, bool moved) {
        ASSERT_EQ(slice, canonical(slice));
        stage_area += area(slice);
        for (int64_t i = slice.q_range.begin; i < slice.q_range.end; ++i) {
          const int64_t query = queries.at(static_cast<size_t>(i));
          ASSERT_NE(query, kNothing) << "a query is computed before it came";
          if (moved) {
            q_used[r][static_cast<size_t>(i)] = 1;
            size_t& in_stage = q_stage[r][static_cast<size_t>(i)];
            ASSERT_TRUE(in_stage == 0 || in_stage == s) << "a remote query is computed in two stages";
            in_stage = s;
          }
          const Range keys = slice.keys_of(i);
          for (int64_t j = keys.begin; j < keys.end; ++j) {
            const int64_t key = kv_buffers[r].at(static_cast<size_t>(j));
            ASSERT_NE(key, kNothing) << "a key is seen before it came";
            kv_used[r][static_cast<size_t>(j)] = 1;
            ASSERT_EQ(query / rows_q, key / rows_k) << "a slice leaves its head group";
            cells[static_cast<size_t>(query / rows_q)].add(
                {{query % rows_q, query % rows_q + 1}, {key % rows_k, key % rows_k + 1}});
          }
        }
      };
      for (const AttnSlice& slice : stage.own_slices) ASSERT_NO_FATAL_FAILURE(compute(slice, q_shards[r], false));
      for (const AttnSlice& slice : stage.moved_slices) ASSERT_NO_FATAL_FAILURE(compute(slice, q_buffers[r], true));
      EXPECT_EQ(stage.area, stage_area);
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(std::count(q_used[r].begin(), q_used[r].end(), 0), 0) << "a query moves for nothing";
    EXPECT_EQ(std::count(kv_used[r].begin(), kv_used[r].end(), 0), 0) << "a key moves for nothing";
    int64_t sum = 0;
    for (const MovementStage& stage : ranks[r].stages) sum += stage.area;
    EXPECT_EQ(ranks[r].area, sum);
  }
  for (int g = 0; g < groups; ++g) {
    const Mask& mask = masks.size() == 1 ? masks[0] : masks.at(static_cast<size_t>(g));
    EXPECT_EQ(cells[static_cast<size_t>(g)], Cells(rows_q, rows_k, mask.slices())) << "head group " << g;
  }
}

inline void expect_movement(const Plan& plan, const std::vector<Mask>& masks) {
  expect_movement_pass(plan, plan.movement()->forward, masks);
  expect_movement_pass(plan, plan.movement()->backward, masks);
}

}  // namespace tangram::reference
