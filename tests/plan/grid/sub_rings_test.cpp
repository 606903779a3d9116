// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The tables of HybridCP, followed row by row: rows are where the slices want them, and gradients come home.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "reference/cells.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

using Rows = std::vector<int64_t>;  // what lies in each row of a buffer

constexpr int64_t kNothing = -1;

std::vector<Rows> shards_of(const Dispatch& dispatch) {
  std::vector<Rows> shards;
  for (int rank = 0; rank < dispatch.cp_size; ++rank) {
    shards.emplace_back();
    for (const Range& range : dispatch.rows_of_rank(rank)) {
      for (int64_t row = range.begin; row < range.end; ++row) shards.back().push_back(row);
    }
  }
  return shards;
}

/// Executes one exchange of all ranks, and checks that both sides of it agree.
void exchange_rows(const std::vector<const Exchange*>& exchanges, const std::vector<Rows>& from,
                   std::vector<Rows>& to) {
  for (size_t rank = 0; rank < exchanges.size(); ++rank) {
    const Exchange& mine = *exchanges[rank];
    ASSERT_TRUE(std::is_sorted(mine.sends.begin(), mine.sends.end()));
    ASSERT_TRUE(std::is_sorted(mine.recvs.begin(), mine.recvs.end()));
    for (size_t peer = 0; peer < exchanges.size(); ++peer) {
      std::vector<RowCopy> sent, expected;
      for (const RowCopy& copy : exchanges[peer]->sends) {
        if (copy.peer == static_cast<int>(rank)) sent.push_back(copy);
      }
      for (const RowCopy& copy : mine.recvs) {
        if (copy.peer == static_cast<int>(peer)) expected.push_back(copy);
      }
      ASSERT_EQ(sent.size(), expected.size());
      for (size_t i = 0; i < sent.size(); ++i) {
        ASSERT_EQ(sent[i].peer_row, expected[i].rows.begin);
        ASSERT_EQ(sent[i].rows.begin, expected[i].peer_row);
        ASSERT_EQ(sent[i].rows.size(), expected[i].rows.size());
      }
    }
    for (const RowCopy& copy : mine.recvs) {
      for (int64_t i = 0; i < copy.rows.size(); ++i) {
        int64_t& target = to[rank].at(static_cast<size_t>(copy.rows.begin + i));
        ASSERT_EQ(target, kNothing);
        target = from[static_cast<size_t>(copy.peer)].at(static_cast<size_t>(copy.peer_row + i));
      }
    }
  }
}

void expect_right(const Plan& plan) {
  const GridPlan& grid = *plan.grid();
  const std::vector<Rows> queries = shards_of(plan.q_dispatch), shards = shards_of(plan.k_dispatch);
  std::map<std::pair<int64_t, int64_t>, int> seen;
  std::map<int64_t, int> came_home;
  int64_t rows_cast = 0, rows_home = 0;
  std::vector<Rows> held = shards;
  for (size_t s = 0; s < grid.steps[0].size(); ++s) {
    if (s > 0) {
      std::vector<Rows> next;
      for (const auto& steps : grid.steps) next.emplace_back(static_cast<size_t>(steps[s].sub_rings.rows), kNothing);
      for (size_t c = 0; c < grid.steps[0][s].sub_rings.casts.size(); ++c) {
        std::vector<const Exchange*> exchanges;
        for (const auto& steps : grid.steps) exchanges.push_back(&steps[s].sub_rings.casts.at(c));
        exchange_rows(exchanges, held, next);
      }
      held = next;
      for (const Rows& rows : held) {
        ASSERT_EQ(std::count(rows.begin(), rows.end(), kNothing), 0);
        rows_cast += static_cast<int64_t>(rows.size());
      }
      std::vector<Rows> home;
      std::vector<const Exchange*> exchanges;
      for (const auto& steps : grid.steps) {
        home.emplace_back(static_cast<size_t>(steps[s].sub_rings.home.rows_received()), kNothing);
        exchanges.push_back(&steps[s].sub_rings.home);
      }
      exchange_rows(exchanges, held, home);
      for (size_t rank = 0; rank < home.size(); ++rank) {
        size_t at = 0;
        for (const Range& rows : grid.steps[rank][s].sub_rings.home_rows) {
          for (int64_t row = rows.begin; row < rows.end; ++row) {
            ASSERT_EQ(home[rank].at(at++), shards[rank].at(static_cast<size_t>(row)));
            ++came_home[shards[rank][static_cast<size_t>(row)]];
            ++rows_home;
          }
        }
        ASSERT_EQ(at, home[rank].size());
      }
    }
    for (size_t rank = 0; rank < grid.steps.size(); ++rank) {
      int64_t cells = 0;
      for (const AttnSlice& slice : grid.steps[rank][s].slices) {
        for (int64_t i = slice.q_range.begin; i < slice.q_range.end; ++i) {
          for (int64_t j = slice.keys_of(i).begin; j < slice.keys_of(i).end; ++j) {
            ++seen[{queries[rank].at(static_cast<size_t>(i)), held[rank].at(static_cast<size_t>(j))}];
            ++cells;
          }
        }
      }
      ASSERT_EQ(cells, grid.steps[rank][s].area);
    }
  }
  // Every visible cell once, by the mask itself.
  int64_t num_cells = 0;
  for (const AttnSlice& slice : plan.mask.slices()) {
    for (int64_t i = slice.q_range.begin; i < slice.q_range.end; ++i) {
      for (int64_t j = slice.keys_of(i).begin; j < slice.keys_of(i).end; ++j, ++num_cells) {
        ASSERT_EQ((seen[{i, j}]), 1) << i << " " << j;
      }
    }
  }
  ASSERT_EQ(static_cast<int64_t>(seen.size()), num_cells);
  // The closed form: (ranks - 1) hops for each row of a shared document, one of them home for its gradients.
  int64_t expected_cast = 0, expected_home = 0;
  for (const SubGroupLevel& level : grid.levels) {
    expected_cast += (level.ranks - 1) * level.k_rows;
    if (level.ranks > 1) expected_home += level.k_rows;
  }
  EXPECT_EQ(rows_cast, expected_cast);
  EXPECT_EQ(rows_home, expected_home);
  for (const auto& [row, times] : came_home) ASSERT_EQ(times, 1) << row;
}

DistAttnConfig config_of(int cp_size, int64_t document_rows) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {2, 1, 4, 4, DType::kFloat32};
  config.strategy.name = Strategy::kHybridCp;
  config.strategy.document_rows = document_rows;
  return config;
}

TEST(SubRings, BringEveryRowWhereItIsSeenAndItsGradientsHome) {
  std::mt19937 rng(17);
  const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  for (int n = 0; n < 200; ++n) {
    const DistAttnConfig config = config_of(static_cast<int>(draw(2, 8)), draw(0, 1) * draw(1, 12));
    const int64_t seqlen_q = config.cp_size * draw(2, 9);
    const int64_t seqlen_k = n % 4 == 3 ? config.cp_size * draw(2, 9) : seqlen_q;
    std::vector<AttnSlice> slices;
    for (int64_t row = 0; n % 4 < 2 && row < seqlen_q;) {
      const int64_t end = std::min(seqlen_q, row + draw(1, seqlen_q / 2));
      slices.push_back(n % 2 == 0 ? AttnSlice::causal({row, end}, {row, end})
                                  : AttnSlice::full({row, end}, {row, end}));
      row = end + (draw(0, 3) == 0 ? 1 : 0);
    }
    if (n % 4 >= 2) slices = reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 5);
    const Mask mask(seqlen_q, seqlen_k, slices);
    expect_right(make_plan(mask, config));
    if (HasFatalFailure()) return;
    // However rows are assigned: a document's sub-group is the smallest that holds them.
    const auto shuffled = [&](int64_t seqlen) {
      std::vector<int> ranks;
      for (int64_t row = 0; row < seqlen; ++row) ranks.push_back(static_cast<int>(row % config.cp_size));
      std::shuffle(ranks.begin(), ranks.end(), rng);
      return Dispatch{config.cp_size, 1, ranks};
    };
    const Dispatch q = shuffled(seqlen_q);
    expect_right(make_plan(mask, config, q, mask.is_self_attention() ? q : shuffled(seqlen_k)));
    if (HasFatalFailure()) return;
  }
}

TEST(SubRings, OfDifferentSizesTurnAtOnce) {
  // Eight ranks of 16 rows: one document on four ranks, two on two ranks each.
  const std::vector<int64_t> cu_seqlens = {0, 64, 96, 128};
  const Plan plan = make_plan(varlen_mask(cu_seqlens, true), config_of(8, 16));
  ASSERT_EQ(plan.grid()->levels.size(), 2u);
  EXPECT_EQ(plan.grid()->levels[0], (SubGroupLevel{2, 2, 64, 64}));
  EXPECT_EQ(plan.grid()->levels[1], (SubGroupLevel{4, 1, 64, 64}));
  EXPECT_EQ(plan.grid()->steps[0].size(), 4u);  // not 1 + 3 + 1
  expect_right(plan);
}

}  // namespace
}  // namespace tangram
