// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tables are played on sets of rows: every rank ends with the rows that its plan says, a row enters a node once, and
// what one rank sends another awaits.
#include "plan/nodes/node_tables.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "plan/program/verify.hpp"
#include "reference/cells.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using Rows = std::set<int64_t>;

DistAttnConfig config_over(int num_nodes, int per_node) {
  DistAttnConfig config;
  config.cp_size = num_nodes * per_node;
  config.heads = {8, 2, 64, 64, DType::kBFloat16};
  config.cost.ranks_per_node = per_node;
  return config;
}

Mask random_documents(std::mt19937& rng, int64_t rows) {
  std::vector<int64_t> borders{0};
  while (borders.back() < rows) {
    borders.push_back(
        std::min(rows, borders.back() + 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(rows / 3))));
  }
  return varlen_mask(borders, true);
}

void expect_mirrored(const std::vector<NodeTables>& tables, NodeExchange NodeTables::* way) {
  std::vector<std::vector<NodeCopy>> recvs(tables.size());
  for (size_t r = 0; r < tables.size(); ++r) {
    for (const NodeCopy& copy : (tables[r].*way).sends) {
      EXPECT_FALSE(copy.rows.empty());
      recvs[static_cast<size_t>(copy.peer)].push_back({copy.stage, static_cast<int>(r), copy.rows});
    }
  }
  for (size_t r = 0; r < tables.size(); ++r) {
    std::sort(recvs[r].begin(), recvs[r].end());
    EXPECT_EQ(recvs[r], (tables[r].*way).recvs) << "rank " << r;
  }
}

void check(const Plan& plan, AttnPass pass) {
  const NodeShape nodes = node_shape(plan.config);
  const std::vector<NodeTables> tables = node_tables(plan, pass);
  const size_t num_ranks = tables.size();
  for (NodeExchange NodeTables::* way :
       {&NodeTables::inside, &NodeTables::hops, &NodeTables::between, &NodeTables::forward}) {
    expect_mirrored(tables, way);
  }
  const auto num_stages =
      static_cast<int>((pass == AttnPass::kForward ? plan.ranks()[0].forward : plan.ranks()[0].backward).size()) - 1;
  std::vector<Rows> own(num_ranks);
  for (int r = 0; r < nodes.cp_size; ++r) {
    for (const Range& rows : plan.k_dispatch.rows_of_rank(r)) {
      for (int64_t row = rows.begin; row < rows.end; ++row) own[static_cast<size_t>(r)].insert(row);
    }
  }
  std::vector<Rows> sendable = own, relayed(num_ranks), have(num_ranks);
  std::vector<Rows> entered(static_cast<size_t>(nodes.num_nodes()));
  const auto each = [&](NodeExchange NodeTables::* way, int stage, const auto& visit) {
    for (int r = 0; r < nodes.cp_size; ++r) {
      for (const NodeCopy& copy : (tables[static_cast<size_t>(r)].*way).sends) {
        EXPECT_TRUE(1 <= copy.stage && copy.stage <= num_stages);
        if (copy.stage != stage) continue;
        for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row) visit(r, copy.peer, row);
      }
    }
  };
  for (int stage = 1; stage <= num_stages; ++stage) {
    each(&NodeTables::inside, stage, [&](int from, int to, int64_t row) {
      EXPECT_TRUE(nodes.same_node(from, to));
      EXPECT_TRUE(own[static_cast<size_t>(from)].contains(row));
      EXPECT_TRUE(have[static_cast<size_t>(to)].insert(row).second);
    });
    each(&NodeTables::hops, stage, [&](int from, int to, int64_t row) {
      EXPECT_TRUE(nodes.same_node(from, to));
      EXPECT_TRUE(own[static_cast<size_t>(from)].contains(row));
      EXPECT_TRUE(sendable[static_cast<size_t>(to)].insert(row).second) << "hops once";
    });
    each(&NodeTables::between, stage, [&](int from, int to, int64_t row) {
      EXPECT_FALSE(nodes.same_node(from, to));
      EXPECT_EQ(nodes.rail_of(from), nodes.rail_of(to));
      EXPECT_TRUE(sendable[static_cast<size_t>(from)].contains(row));
      EXPECT_TRUE(entered[static_cast<size_t>(nodes.node_of(to))].insert(row).second) << "enters a node once";
      relayed[static_cast<size_t>(to)].insert(row);
    });
    each(&NodeTables::forward, stage, [&](int from, int to, int64_t row) {
      EXPECT_TRUE(nodes.same_node(from, to));
      EXPECT_TRUE(relayed[static_cast<size_t>(from)].contains(row));
      EXPECT_TRUE(have[static_cast<size_t>(to)].insert(row).second);
    });
    // After each stage a rank has what its segments of that stage say.
    for (int r = 0; r < nodes.cp_size; ++r) {
      for (const KvSegment& segment : plan.ranks()[static_cast<size_t>(r)].segments) {
        const int its = pass == AttnPass::kForward ? segment.stage_fwd : segment.stage_bwd;
        if (its != stage) continue;
        for (int64_t row = segment.global.begin; row < segment.global.end; ++row) {
          EXPECT_TRUE(have[static_cast<size_t>(r)].contains(row) || relayed[static_cast<size_t>(r)].contains(row));
        }
      }
    }
  }
  // Nothing comes that no rank needs.
  for (int r = 0; r < nodes.cp_size; ++r) {
    int64_t needed = 0, as_relay = 0;
    for (const KvSegment& segment : plan.ranks()[static_cast<size_t>(r)].segments) {
      if (segment.owner == r) continue;
      needed += segment.global.size();
      for (int64_t row = segment.global.begin; row < segment.global.end; ++row) {
        as_relay += relayed[static_cast<size_t>(r)].contains(row) ? 1 : 0;
      }
    }
    EXPECT_EQ(std::ssize(have[static_cast<size_t>(r)]) + as_relay, needed) << "rank " << r;
  }
  Rows all_needed;
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    all_needed.clear();
    for (int rail = 0; rail < nodes.ranks_per_node; ++rail) {
      for (const KvSegment& segment : plan.ranks()[static_cast<size_t>(nodes.rank(node, rail))].segments) {
        if (nodes.node_of(segment.owner) == node) continue;
        for (int64_t row = segment.global.begin; row < segment.global.end; ++row) all_needed.insert(row);
      }
    }
    EXPECT_EQ(entered[static_cast<size_t>(node)], all_needed) << "node " << node;
  }
}

TEST(NodeTables, BringEachRowToEachNodeOnceAndToAllRanksThatNeedIt) {
  std::mt19937 rng(7);
  const std::pair<int, int> shapes[] = {{2, 1}, {2, 2}, {3, 2}, {2, 4}, {4, 2}, {5, 1}, {3, 3}};
  for (int n = 0; n < 40; ++n) {
    const auto [num_nodes, per_node] = shapes[static_cast<size_t>(n) % std::size(shapes)];
    DistAttnConfig config = config_over(num_nodes, per_node);
    config.overlap.num_stages_fwd = static_cast<int>(rng() % 5);
    config.overlap.num_stages_bwd = static_cast<int>(rng() % 5);
    config.overlap.keep_remote_kv = rng() % 3 == 0;
    if (config.overlap.num_stages_bwd == 1) config.overlap.keep_remote_kv = false;
    const int64_t rows = int64_t{64} * config.cp_size;
    const Mask mask = n % 4 == 0   ? causal_mask(rows, rows)
                      : n % 4 == 1 ? Mask(rows, rows, reference::random_disjoint_slices(rng, rows, rows, 5))
                                   : random_documents(rng, rows);
    const Plan plan = make_plan(mask, config);
    SCOPED_TRACE(testing::Message() << "case " << n);
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) check(plan, pass);
    if (testing::Test::HasFailure()) return;
  }
}

// Rails are uneven where one rank of a node owns what all others need.
TEST(NodeTables, HopsBringRowsToOtherRails) {
  DistAttnConfig config = config_over(4, 4);
  const int64_t rows = 16 * 256;
  const Mask mask(rows, rows, {AttnSlice::full({0, rows}, {0, 256})});
  Dispatch dispatch{16, 256, {}};
  for (int r = 0; r < 16; ++r) dispatch.rank_of_chunk.push_back(r);
  const Plan plan = make_plan(mask, config, dispatch, dispatch);
  const std::vector<NodeTables> tables = node_tables(plan, AttnPass::kForward);
  EXPECT_FALSE(tables[0].hops.sends.empty());
  const NodeTraffic traffic = traffic_of(rails_of(plan), node_shape(config));
  EXPECT_EQ(traffic.total(), 3 * 256);
  EXPECT_LE(traffic.busiest(), 256);
  check(plan, AttnPass::kForward);
}

// Stages of rows that lie apart in the buffers.
TEST(NodeTables, ProgramsOfTheirPlansComputeEveryCellOnce) {
  std::mt19937 rng(9);
  for (int n = 0; n < 12; ++n) {
    DistAttnConfig config = config_over(2 + n % 3, 2);
    config.overlap.num_stages_fwd = 1 + n % 4;
    config.overlap.num_stages_bwd = 2 + n % 3;
    config.overlap.keep_remote_kv = n % 2 == 0;
    const Plan plan = make_plan(random_documents(rng, int64_t{32} * config.cp_size), config);
    CallShape call = CallShape::with_results(config.heads.dtype, config.heads.dtype);
    EXPECT_NO_THROW(verify(plan, call, step_programs(plan, call, kHostTarget, false))) << n;
    ProgramTarget target;
    target.forward_calls = target.backward_calls = KeyCalls::kAsTheyCome;
    EXPECT_NO_THROW(verify(plan, call, step_programs(plan, call, target, false))) << n;
  }
}

TEST(NodeTables, AreOnlyOfPlansOverSeveralNodes) {
  DistAttnConfig config = config_over(2, 2);
  config.cost.ranks_per_node = 0;
  EXPECT_THROW(node_tables(make_plan(causal_mask(256, 256), config), AttnPass::kForward), InvalidArgument);
}

}  // namespace
}  // namespace tangram
