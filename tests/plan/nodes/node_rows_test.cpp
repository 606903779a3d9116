// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/nodes/node_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "plan/nodes/node_stages.hpp"
#include "plan/rank_plan.hpp"
#include "reference/cells.hpp"

namespace tangram {
namespace {

struct Case {
  Mask mask;
  Dispatch dispatch;
  NodeShape nodes;
};

// Random slices and a random map of chunks.
Case random_case(std::mt19937& rng) {
  const int per_node = 1 + static_cast<int>(rng() % 4), num_nodes = 1 + static_cast<int>(rng() % 4);
  const NodeShape nodes{per_node * num_nodes, per_node};
  const int64_t chunk_size = 1 + static_cast<int64_t>(rng() % 3);
  std::vector<int> ranks;
  for (int r = 0; r < nodes.cp_size; ++r) ranks.insert(ranks.end(), 1 + 24 / static_cast<size_t>(nodes.cp_size), r);
  std::shuffle(ranks.begin(), ranks.end(), rng);
  const int64_t rows = std::ssize(ranks) * chunk_size;
  return {Mask(rows, rows, reference::random_disjoint_slices(rng, rows, rows, 6)),
          {nodes.cp_size, chunk_size, RankOfChunk(ranks)},
          nodes};
}

int owner_of(const Dispatch& dispatch, int64_t row) {
  return dispatch.rank_of_chunk[static_cast<size_t>(row / dispatch.chunk_size)];
}

TEST(NodeRows, AreTheKeysThatANodeSeesAndDoesNotHoldEachOnce) {
  std::mt19937 rng(3);
  for (int n = 0; n < 200; ++n) {
    const auto [mask, dispatch, nodes] = random_case(rng);
    const std::vector<OwnedRun> runs = owned_runs(dispatch);
    const NodeRows rows = node_rows(mask, runs, runs, nodes);
    const reference::Cells cells(mask.seqlen_q(), mask.seqlen_k(), mask.slices());
    for (int node = 0; node < nodes.num_nodes(); ++node) {
      std::vector<int> count(static_cast<size_t>(mask.seqlen_k()));
      for (const NodePiece& piece : rows[static_cast<size_t>(node)]) {
        EXPECT_EQ(piece.rail, nodes.rail_of(piece.owner));
        for (int64_t row = piece.rows.begin; row < piece.rows.end; ++row) {
          ++count[static_cast<size_t>(row)];
          EXPECT_EQ(owner_of(dispatch, row), piece.owner);
        }
      }
      for (int64_t key = 0; key < mask.seqlen_k(); ++key) {
        bool needs = false;
        for (int64_t q = 0; q < mask.seqlen_q(); ++q) {
          needs = needs || (cells.count(q, key) > 0 && nodes.node_of(owner_of(dispatch, q)) == node);
        }
        needs = needs && nodes.node_of(owner_of(dispatch, key)) != node;
        EXPECT_EQ(count[static_cast<size_t>(key)], needs ? 1 : 0) << "node " << node << ", key " << key;
      }
    }
  }
}

TEST(NodeRows, AreTheSameFromRankPlans) {
  std::mt19937 rng(4);
  for (int n = 0; n < 200; ++n) {
    const auto [mask, dispatch, nodes] = random_case(rng);
    const std::vector<OwnedRun> runs = owned_runs(dispatch);
    const NodeRows rows = node_rows(mask, runs, runs, nodes);
    const std::vector<RankPlan> ranks = make_rank_plans(mask, dispatch, dispatch);
    EXPECT_EQ(node_rows(ranks, nodes), rows);
    std::vector<std::vector<Range>> needed;
    for (const RankPlan& rank : ranks) {
      needed.emplace_back();
      for (const KvSegment& segment : rank.segments) append_range(needed.back(), segment.global);
    }
    EXPECT_EQ(node_rows(needed, runs, nodes), rows);
  }
}

// All rows of a few ranks are needed everywhere: rails can be made even, since rows may go over any.
TEST(Rails, AreEvenedUpToTheLimitWithTheSameRows) {
  const NodeShape nodes{32, 8};
  std::mt19937 rng(5);
  for (int n = 0; n < 50; ++n) {
    NodeRows rows(4);
    for (int node = 0; node < 4; ++node) {
      int64_t at = 0;
      while (at < 20'000) {
        const int64_t size = 1 + static_cast<int64_t>(rng() % 700);
        const int owner = static_cast<int>(rng() % 3) * 8 + static_cast<int>(rng() % 2);
        if (nodes.node_of(owner) != node) {
          rows[static_cast<size_t>(node)].push_back({{at, at + size}, owner, nodes.rail_of(owner)});
        }
        at += size;
      }
    }
    const NodeTraffic before = traffic_of(rows, nodes);
    NodeRows evened = rows;
    even_rails(evened, nodes);
    const NodeTraffic after = traffic_of(evened, nodes);
    EXPECT_EQ(after.total(), before.total());
    EXPECT_GT(after.total_hops(), 0);
    int64_t most = 0;
    for (const auto* loads : {&before.sent, &before.received}) {
      for (int node = 0; node < 4; ++node) {
        int64_t sum = 0;
        for (int rail = 0; rail < 8; ++rail) sum += (*loads)[static_cast<size_t>(nodes.rank(node, rail))];
        most = std::max(most, sum);
      }
    }
    EXPECT_LE(after.busiest(), static_cast<int64_t>(1.15 * static_cast<double>(most) / 8) + 64);
    for (size_t node = 0; node < 4; ++node) {
      std::vector<NodePiece> joined;
      for (const NodePiece& piece : evened[node]) {
        if (!joined.empty() && joined.back().owner == piece.owner && joined.back().rows.end == piece.rows.begin) {
          joined.back().rows.end = piece.rows.end;
        } else {
          joined.push_back({piece.rows, piece.owner, nodes.rail_of(piece.owner)});
        }
      }
      std::vector<NodePiece> expected;
      for (const NodePiece& piece : rows[node]) {
        if (!expected.empty() && expected.back().owner == piece.owner && expected.back().rows.end == piece.rows.begin) {
          expected.back().rows.end = piece.rows.end;
        } else {
          expected.push_back(piece);
        }
      }
      EXPECT_EQ(joined, expected);
    }
  }
}

TEST(Rails, ThatAreEvenStay) {
  const NodeShape nodes{4, 2};
  NodeRows rows(2);
  rows[0] = {{{100, 200}, 2, 0}, {{200, 300}, 3, 1}};
  rows[1] = {{{0, 100}, 0, 0}};
  const NodeRows before = rows;
  even_rails(rows, nodes);
  EXPECT_EQ(rows, before);
}

}  // namespace
}  // namespace tangram
