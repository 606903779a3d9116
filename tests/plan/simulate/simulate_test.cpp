// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The simulator against whole plans and against sums done by hand.
#include "tangram/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "plan/cost.hpp"
#include "plan/nodes/node_tables.hpp"
#include "plan/program/memory.hpp"
#include "plan/simulate/rank_needs.hpp"
#include "plan/simulate/strategies.hpp"
#include "reference/mask_cases.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

// Time is area, rows and nothing else.
MachineModel plain_machine() {
  MachineModel machine;
  machine.forward = {1, 1, 1, 500e12, 0, 0, 0, 0};
  machine.backward = {1, 1, 1, 400e12, 0, 0, 0, 0};
  machine.inside = {300e9, 0};
  machine.between = {50e9, 0};
  machine.stage_overhead_s = 0;
  machine.memory_bytes_per_s = 1e30;
  return machine;
}

DistAttnConfig config_for(int cp_size) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  return config;
}

Mask documents(int64_t seqlen, int num_documents, unsigned seed) {
  std::mt19937 rng(seed);
  std::set<int64_t> borders{0, seqlen};
  while (static_cast<int>(borders.size()) <= num_documents) borders.insert(static_cast<int64_t>(rng() % seqlen));
  return varlen_mask(std::vector<int64_t>(borders.begin(), borders.end()), true);
}

// Rows, bytes, memory and balance of whole plans, which the executor's counters are held against elsewhere.
TEST(Simulate, TangramMovesAndHoldsWhatThePlanDoes) {
  for (const reference::MaskCase& c : reference::load_mask_cases("dist_masks.json")) {
    if (c.seqlen > 131072) continue;
    const Mask mask(c.seqlen, c.seqlen, c.slices);
    for (const int cp_size : {1, 2, 8}) {
      SCOPED_TRACE(c.name + " cp " + std::to_string(cp_size));
      const MachineModel machine;
      DistAttnConfig config = config_for(cp_size);
      const StrategyPrediction sim = simulate(mask, config, machine, "tangram");
      config.cost = cost_model_of(machine);
      const Plan plan = make_plan(mask, config);
      EXPECT_EQ(sim.kv_rows_moved, plan.rows_moved());
      EXPECT_DOUBLE_EQ(sim.balance, plan.balance());
      double peak = 0;
      for (int r = 0; r < cp_size; ++r) peak = std::max(peak, static_cast<double>(plan.peak_bytes(r)));
      EXPECT_EQ(sim.peak_bytes, peak);
      const double rows = static_cast<double>(plan.rows_moved());
      EXPECT_EQ(sim.forward_bytes, rows * 4096);                // 8 heads * (128 + 128) * 2 bytes
      EXPECT_EQ(sim.backward_bytes, rows * (4096 + 2 * 4096));  // and float32 gradients
      EXPECT_EQ(sim.between_bytes, 0);
    }
  }
}

/// Documents as long as the chunks of a zigzag dispatch, so that no rank needs what another has; but for the first two,
/// if they are joined, which two ranks share.
Mask documents_alone(int64_t rows, int cp_size, bool joins_two) {
  std::vector<int64_t> borders{0};
  for (int chunk = joins_two ? 2 : 1; chunk <= 2 * cp_size; ++chunk) borders.push_back(rows / (2 * cp_size) * chunk);
  return varlen_mask(borders, false);
}

/// Whether the strategy can run at all.
bool expect_peak_bytes_of_plans(const Mask& mask, DistAttnConfig config) {
  const MachineModel machine;
  const StrategyPrediction sim = simulate(mask, config, machine, to_string(config.strategy.name));
  if (!sim.infeasible.empty()) return false;
  config.cost = cost_model_of(machine);
  const Plan plan = make_plan(mask, config);
  int64_t peak = 0;
  for (int r = 0; r < config.cp_size; ++r) peak = std::max(peak, plan.peak_bytes(r));
  EXPECT_EQ(sim.peak_bytes, static_cast<double>(peak));
  return true;
}

TEST(Simulate, MemoryIsThatOfThePlansOfAllStrategies) {
  const std::vector<int64_t> halves{0, 1680, 3360};
  std::vector<Mask> masks{causal_mask(3360, 3360), sliding_window_mask(3360, {300, 0}), documents(3360, 17, 2),
                          varlen_mask(halves, false), full_mask(1680, 3360)};
  const StrategyConfig strategies[] = {
      {Strategy::kTangram, 0, 0, {}},    {Strategy::kRing, 0, 0, {}},       {Strategy::kUlysses, 0, 0, {}},
      {Strategy::kHcms, 0, 0, {}},       {Strategy::kAllGather, 0, 0, {}},  {Strategy::kUsp, 0, 0, {}},
      {Strategy::kUsp, 2, 0, {}},        {Strategy::kLoongTrain, 0, 0, {}}, {Strategy::kLoongTrain, 1, 2, {}},
      {Strategy::kLoongTrain, 2, 2, {}}, {Strategy::kHybridCp, 0, 0, {}},   {Strategy::kHybridCp, 0, 0, {}, 500}};
  int num_compared = 0;
  const size_t num_masks = masks.size();
  for (int cp_size = 1; cp_size <= 8; ++cp_size) {
    masks.erase(masks.begin() + static_cast<ptrdiff_t>(num_masks), masks.end());
    masks.push_back(documents_alone(3360, cp_size, false));
    masks.push_back(documents_alone(3360, cp_size, true));
    for (const Mask& mask : masks) {
      for (const StrategyConfig& strategy : strategies) {
        for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
          SCOPED_TRACE(::testing::Message() << to_string(strategy.name) << " " << strategy.ulysses_degree << " "
                                            << strategy.inner_ring_size << ", cp_size " << cp_size << ", slices "
                                            << mask.slices().size() << ", " << to_string(reduce_dtype));
          DistAttnConfig config;
          config.cp_size = cp_size;
          config.heads = {16, cp_size % 2 == 0 ? 8 : 1, 128, 64, DType::kBFloat16};
          if (cp_size % 2 == 1) config.heads.num_heads_q = 2 * cp_size;
          config.reduce_dtype = reduce_dtype;
          config.strategy = strategy;
          num_compared += expect_peak_bytes_of_plans(mask, config) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(num_compared, 700);
}

TEST(Simulate, MemoryIsThatOfPlansWithGivenStages) {
  for (const int stages : {1, 2, 3}) {
    for (const Mask& mask : {causal_mask(3360, 3360), varlen_mask(std::vector<int64_t>{0, 840, 1680, 3360}, true)}) {
      DistAttnConfig config = config_for(4);
      config.overlap.num_stages_bwd = stages;
      config.reduce_dtype = DType::kBFloat16;
      EXPECT_TRUE(expect_peak_bytes_of_plans(mask, config));
    }
  }
}

struct ManyRanks {
  const char* mask;
  Strategy strategy;
  int cp_size;
};

class SimulateManyRanks : public ::testing::TestWithParam<ManyRanks> {};

// Whole plans of so many ranks cost seconds for masks that show much; these do not.
TEST_P(SimulateManyRanks, MemoryIsThatOfTheLargestRankOfThePlan) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  const auto [name, strategy, cp_size] = GetParam();
  const bool takes_seconds = strategy == Strategy::kRing || strategy == Strategy::kHybridCp;
  if (takes_seconds && !support::is_long_run()) GTEST_SKIP() << "by make test-long";
  const int64_t rows = int64_t{cp_size} * 128;
  const Mask mask = name == std::string_view("window")   ? sliding_window_mask(rows, {700, 0})
                    : name == std::string_view("causal") ? causal_mask(rows, rows)
                                                         : documents(rows, cp_size / 8, 7);
  DistAttnConfig config = config_for(cp_size);
  config.strategy.name = strategy;
  if (strategy == Strategy::kUsp) config.strategy.ulysses_degree = 8;
  const MachineModel machine;
  const StrategyPrediction sim = simulate(mask, config, machine, to_string(strategy));
  ASSERT_EQ(sim.infeasible, "");
  config.cost = cost_model_of(machine);
  const std::vector<int64_t> bytes = peak_bytes_of_ranks(make_plan(mask, config), cp_size);
  ASSERT_EQ(std::ssize(bytes), cp_size);
  EXPECT_EQ(sim.peak_bytes, static_cast<double>(*std::max_element(bytes.begin(), bytes.end())));
}

std::string name_of(const ::testing::TestParamInfo<ManyRanks>& info) {
  const auto [mask, strategy, cp_size] = info.param;
  return std::string(mask) + "_" + std::string(to_string(strategy)) + "_" + std::to_string(cp_size);
}

INSTANTIATE_TEST_SUITE_P(
    Simulate, SimulateManyRanks,
    ::testing::Values(ManyRanks{"window", Strategy::kTangram, 1024}, ManyRanks{"documents", Strategy::kTangram, 1024},
                      ManyRanks{"causal", Strategy::kTangram, 1024}, ManyRanks{"causal", Strategy::kRing, 1024},
                      ManyRanks{"causal", Strategy::kUsp, 1024}, ManyRanks{"documents", Strategy::kHybridCp, 1024},
                      ManyRanks{"window", Strategy::kTangram, 4096}, ManyRanks{"documents", Strategy::kTangram, 4096},
                      ManyRanks{"causal", Strategy::kUsp, 4096}),
    name_of);

TEST(Simulate, SentRowsAreThoseOfTheExchangeTables) {
  const Mask mask = documents(16384, 23, 3);
  const DistAttnConfig config = config_for(8);
  MachineModel machine;
  machine.ranks_per_node = 2;
  const Plan plan = make_plan(mask, config);
  const sim::SimInput input{mask, config, machine};
  const sim::KeyRuns runs = sim::key_runs(plan.k_dispatch, input);
  const auto slices = cut_by_rank(mask, owned_runs(plan.q_dispatch), 8);
  std::vector<sim::RankNeeds> needs;
  for (int r = 0; r < 8; ++r) needs.push_back(sim::needs_of(slices[static_cast<size_t>(r)], runs, r));
  const std::vector<sim::Transfer> sent = sim::sent_rows(needs, runs, input);
  for (int r = 0; r < 8; ++r) {
    int64_t inside = 0, between = 0;
    for (const Stage& stage : plan.ranks()[static_cast<size_t>(r)].forward) {
      for (const RowCopy& copy : stage.exchange.sends) {
        (copy.peer / 2 == r / 2 ? inside : between) += copy.rows.size();
      }
    }
    EXPECT_EQ(sent[static_cast<size_t>(r)].inside.bytes, static_cast<double>(inside)) << r;
    EXPECT_EQ(sent[static_cast<size_t>(r)].between.bytes, static_cast<double>(between)) << r;
  }
}

TEST(Simulate, RowsThatANodeNeedsCrossOnceForIt) {
  const Mask mask = documents(8192, 11, 5);
  DistAttnConfig config = config_for(8);
  MachineModel machine = plain_machine();
  machine.ranks_per_node = 4;
  config.cost = cost_model_of(machine);
  const Plan plan = make_plan(mask, config);
  std::set<int64_t> crossing;  // node * seqlen + row
  double direct = 0;
  for (int r = 0; r < 8; ++r) {
    for (const KvSegment& segment : plan.ranks()[static_cast<size_t>(r)].segments) {
      if (segment.owner / 4 == r / 4) continue;
      direct += static_cast<double>(segment.global.size());
      for (int64_t row = segment.global.begin; row < segment.global.end; ++row) crossing.insert(r / 4 * 8192 + row);
    }
  }
  const StrategyPrediction flat = simulate(mask, config, machine, "tangram");
  const StrategyPrediction hierarchical = simulate(mask, config, machine, "tangram_hierarchical");
  const double bytes_per_row = 4096 + 4096 + 8192;  // cast twice, reduced once
  EXPECT_EQ(flat.between_bytes, direct * bytes_per_row);
  EXPECT_NEAR(hierarchical.between_bytes, static_cast<double>(crossing.size()) * bytes_per_row, 1);
  // A relay may receive what it does not need itself.
  EXPECT_GE(hierarchical.forward_bytes, flat.forward_bytes);
  EXPECT_LE(hierarchical.forward_bytes, flat.forward_bytes + static_cast<double>(crossing.size()) * 4096);
}

// Counted from the tables of the plan.
TEST(Simulate, WhatCardsCarryIsWhatTablesSay) {
  const Mask mask = documents(65536, 40, 6);
  DistAttnConfig config = config_for(16);
  MachineModel machine = plain_machine();
  machine.ranks_per_node = 4;
  config.cost = with_nodes(cost_model_of(machine), machine);
  const Plan plan = make_plan(mask, config);
  const std::vector<NodeTables> tables = node_tables(plan, AttnPass::kForward);
  const auto rows_of = [](const std::vector<NodeCopy>& copies) {
    int64_t rows = 0;
    for (const NodeCopy& copy : copies) rows += copy.rows.size();
    return rows;
  };
  int64_t crossing = 0, busiest = 0, received = 0, busiest_pair = 0;
  for (size_t r = 0; r < tables.size(); ++r) {
    const NodeExchange& between = tables[r].between;
    crossing += rows_of(between.recvs);
    busiest = std::max({busiest, rows_of(between.sends), rows_of(between.recvs)});
    received += rows_of(between.recvs) + rows_of(tables[r].inside.recvs) + rows_of(tables[r].forward.recvs);
    if (r % 2 == 1) continue;
    const NodeExchange& next = tables[r + 1].between;
    busiest_pair = std::max(
        {busiest_pair, rows_of(between.sends) + rows_of(next.sends), rows_of(between.recvs) + rows_of(next.recvs)});
  }
  ASSERT_GT(crossing, 0);
  const double bytes_per_row = 4096 + 4096 + 8192;
  StrategyPrediction nodes = simulate(mask, config_for(16), machine, "tangram_nodes");
  EXPECT_EQ(nodes.between_bytes, static_cast<double>(crossing) * bytes_per_row);
  EXPECT_EQ(nodes.busiest_card_bytes, static_cast<double>(busiest) * bytes_per_row);
  EXPECT_GE(nodes.forward_bytes, static_cast<double>(received) * 4096);
  EXPECT_DOUBLE_EQ(nodes.balance, plan.balance());
  const StrategyPrediction relays = simulate(mask, config_for(16), machine, "tangram_hierarchical");
  EXPECT_LT(nodes.between_bytes, relays.between_bytes);
  EXPECT_LT(nodes.busiest_card_bytes, relays.busiest_card_bytes);
  // Two ranks share a card: planned for, so that only the plan's own rows are alike.
  machine.nics_per_node = 2;
  const StrategyPrediction shared = simulate(mask, config_for(16), machine, "tangram_hierarchical");
  EXPECT_EQ(shared.between_bytes, relays.between_bytes);
  EXPECT_GE(shared.busiest_card_bytes, relays.busiest_card_bytes);
  EXPECT_LE(shared.busiest_card_bytes, 2 * relays.busiest_card_bytes);
}

TEST(Simulate, FewerCardsAndANarrowSpineAreSlower) {
  const Mask mask = documents(131072, 30, 2);
  MachineModel machine = plain_machine();
  machine.ranks_per_node = 4;
  machine.between.bytes_per_s = 2e9;
  for (const char* strategy : {"tangram", "tangram_hierarchical", "tangram_nodes", "ring", "all_gather"}) {
    SCOPED_TRACE(strategy);
    MachineModel worse = machine;
    const double all = simulate(mask, config_for(16), machine, strategy).step_s();
    worse.nics_per_node = 1;
    EXPECT_GT(simulate(mask, config_for(16), worse, strategy).step_s(), all);
    worse = machine;
    worse.spine = 0.1;
    EXPECT_GT(simulate(mask, config_for(16), worse, strategy).step_s(), all);
  }
}

TEST(Simulate, NodesNeedEquallyManyRanks) {
  MachineModel machine = plain_machine();
  machine.ranks_per_node = 8;
  const Mask mask = causal_mask(12288, 12288);
  EXPECT_EQ(simulate(mask, config_for(12), machine, "tangram_nodes").infeasible,
            "needs equally many ranks on every node");
  EXPECT_EQ(simulate(mask, config_for(8), machine, "tangram_nodes").infeasible, "all ranks are in one node");
}

TEST(Simulate, WithPlainConstantsTheTimeIsThatOfThePlanner) {
  for (const Mask& mask : {causal_mask(32768, 32768), documents(32768, 40, 1), sliding_window_mask(32768, {1024, 0})}) {
    for (const auto& [head_dim, head_dim_v] : {std::pair(128, 128), std::pair(64, 64), std::pair(192, 128)}) {
      DistAttnConfig config = config_for(4);
      config.heads.head_dim = head_dim;
      config.heads.head_dim_v = head_dim_v;
      config.overlap = {.num_stages_fwd = 1, .num_stages_bwd = 1};
      const MachineModel machine = plain_machine();
      const StrategyPrediction sim = simulate(mask, config, machine, "tangram");
      config.cost = cost_model_of(machine);
      const Plan plan = make_plan(mask, config);
      EXPECT_NEAR(sim.forward_s, plan.predicted.forward_s, 1e-9 * sim.forward_s);
      EXPECT_NEAR(sim.backward_s, plan.predicted.backward_s, 1e-9 * sim.backward_s);
    }
  }
}

TEST(Simulate, RingPassesEveryBlockToEverybody) {
  const int64_t seqlen = 65536;
  const MachineModel machine = plain_machine();
  const StrategyPrediction ring = simulate(full_mask(seqlen, seqlen), config_for(8), machine, "ring");
  const double rows = static_cast<double>(seqlen) * 7;
  EXPECT_EQ(ring.kv_rows_moved, seqlen * 7);
  EXPECT_EQ(ring.forward_bytes, rows * 4096);
  EXPECT_EQ(ring.backward_bytes, rows * 4096 + static_cast<double>(seqlen) * 8 * 8192);
  // Equal work everywhere and transfers shorter than a step: only compute shows forward; backward the last hop home.
  const double cells = static_cast<double>(seqlen) * static_cast<double>(seqlen) / 8;
  const double forward_s = cells * 64 * 2 * 256 / 500e12;
  EXPECT_NEAR(ring.forward_s, forward_s, 1e-6 * forward_s);
  const double backward_s = cells * 64 * 2 * 640 / 400e12;
  const double hop_s = static_cast<double>(seqlen) / 8 * 8192 / 300e9;
  EXPECT_NEAR(ring.backward_s, backward_s + hop_s, 1e-6 * backward_s);
}

// Out forward and dq backward, read and written in float32 in each of seven further steps, and rounded once. Backward a
// further step also reads out and dout and its own dq again, and gradients of keys that come are added to its own.
TEST(Simulate, FurtherStepsAddToTheResultsOfTheFirst) {
  const Mask mask = full_mask(65536, 65536);
  MachineModel machine = plain_machine();
  const StrategyPrediction free = simulate(mask, config_for(8), machine, "ring");
  const StrategyPrediction tangram = simulate(mask, config_for(8), machine, "tangram");
  machine.memory_bytes_per_s = 1e12;
  const double step_s = 2 * 8192.0 * 64 * 128 * 4 / 1e12;
  const StrategyPrediction ring = simulate(mask, config_for(8), machine, "ring");
  EXPECT_NEAR(ring.forward_s - free.forward_s, 8 * step_s, 1e-3 * step_s);
  const double grads_s = 3 * 8192.0 * 8 * 256 * 4 / 1e12;  // the last ones, behind which nothing computes
  EXPECT_NEAR(ring.backward_s - free.backward_s, (7 * 2.5 + 1) * step_s + grads_s, 1e-3 * step_s);
  EXPECT_NEAR(simulate(mask, config_for(8), machine, "all_gather").forward_s - free.forward_s, 2 * step_s,
              0.05 * step_s);
  // One launch for all stages pays for none; local rows are copied to their places.
  EXPECT_LT(simulate(mask, config_for(8), machine, "tangram").forward_s, tangram.forward_s + 0.5 * step_s);
}

TEST(Simulate, RingWaitsForItsSlowestLink) {
  const int64_t seqlen = 65536;
  MachineModel machine = plain_machine();
  machine.ranks_per_node = 4;
  machine.between.bytes_per_s = 1e9;  // a hop takes far longer than a step
  const StrategyPrediction ring = simulate(full_mask(seqlen, seqlen), config_for(8), machine, "ring");
  // The rank behind a border receives seven blocks one after the other, and computes with the last.
  const double hop_s = static_cast<double>(seqlen) / 8 * 4096 / 1e9;
  EXPECT_GT(ring.forward_s, 7 * hop_s);
  EXPECT_LT(ring.forward_s, 9 * hop_s);
}

TEST(Simulate, AllGatherHidesBehindOwnKeysAndUlyssesNothing) {
  const int64_t seqlen = 32768;
  const MachineModel machine = plain_machine();
  const Mask mask = full_mask(seqlen, seqlen);
  const double rows = static_cast<double>(seqlen);
  const double compute_s = rows * rows / 4 * 64 * 2 * (256 / 500e12 + 640 / 400e12);
  const StrategyPrediction gather = simulate(mask, config_for(4), machine, "all_gather");
  // A quarter of the work is there at once and longer than the gather; the reduce-scatter follows the last kernel.
  EXPECT_NEAR(gather.exposed_s, rows * 3 / 4 * 8192 / 300e9, 1e-9);
  EXPECT_NEAR(gather.step_s(), gather.exposed_s + compute_s, 1e-6 * compute_s);
  MachineModel slow = machine;
  slow.inside.bytes_per_s = 1e9;
  const double own_s = rows / 4 * rows / 4 * 64 * 2 * 256 / 500e12;
  const StrategyPrediction late = simulate(mask, config_for(4), slow, "all_gather");
  EXPECT_NEAR(late.forward_s, rows * 3 / 4 * 4096 / 1e9 + 3 * own_s, 1e-6);
  const StrategyPrediction ulysses = simulate(mask, config_for(4), machine, "ulysses");
  // q and out forward with float32 lse, dout and dq backward: 16 KiB a row; K/V 4 KiB, and as much of gradients back.
  // Three quarters of a quarter of the heads of every row come to each rank.
  const double bytes = rows * 3 / 16 * (4 * 16384 + 64 * 4 + 4096 + 4096);
  EXPECT_NEAR(ulysses.exposed_s, bytes / 300e9, 1e-9);
  EXPECT_NEAR(ulysses.max_rank_bytes, bytes, 1);
}

constexpr std::string_view kGridStrategies[] = {"ulysses", "hcms",        "ring",     "all_gather",
                                                "usp",     "loong_train", "hybrid_cp"};

// What the executors' counters are held against in strategies_test.
TEST(Simulate, BytesOfGridsAreThoseOfTheirPlans) {
  const Mask mask = documents(12288, 17, 2);
  for (const std::string_view strategy : kGridStrategies) {
    for (const int cp_size : {1, 2, 4, 8, 16}) {
      for (const int heads_kv : {1, 8, 32}) {
        SCOPED_TRACE(std::string(strategy) + " cp " + std::to_string(cp_size) + " K/V heads " +
                     std::to_string(heads_kv));
        DistAttnConfig config = config_for(cp_size);
        config.heads.num_heads_kv = heads_kv;
        const MachineModel machine;
        const StrategyPrediction sim = simulate(mask, config, machine, strategy);
        ASSERT_EQ(sim.infeasible, "");
        config.strategy.name = parse_strategy(strategy);
        config.cost = cost_model_of(machine);
        const DType dtype = config.heads.dtype;
        const GridTraffic traffic = grid_traffic(make_plan(mask, config), {dtype, dtype, dtype, true});
        EXPECT_EQ(sim.forward_bytes, static_cast<double>(traffic.forward_bytes));
        EXPECT_EQ(sim.backward_bytes, static_cast<double>(traffic.backward_bytes));
        if (strategy == "hybrid_cp") continue;  // see HybridCpCrossesNodesOnlyWithDocumentsThatDo
        EXPECT_EQ(sim.between_bytes > 0, cp_size > machine.ranks_per_node);
      }
    }
  }
}

TEST(Simulate, WithPlainConstantsTheTimeOfGridsIsThatOfThePlanner) {
  for (const Mask& mask : {causal_mask(32768, 32768), documents(32768, 40, 1), sliding_window_mask(32768, {1024, 0})}) {
    for (const std::string_view strategy : kGridStrategies) {
      for (const double rate : {300e9, 3e9}) {
        SCOPED_TRACE(std::string(strategy) + " at " + std::to_string(rate));
        MachineModel machine = plain_machine();
        machine.inside.bytes_per_s = rate;
        DistAttnConfig config = config_for(8);
        config.heads.num_heads_kv = 16;
        if (strategy == "loong_train" || strategy == "usp") config.strategy.ulysses_degree = 2;
        const StrategyPrediction sim = simulate(mask, config, machine, strategy);
        config.strategy.name = parse_strategy(strategy);
        config.cost = cost_model_of(machine);
        const Plan plan = make_plan(mask, config);
        // Seconds of ring steps are float32.
        EXPECT_NEAR(sim.forward_s, plan.predicted.forward_s, 1e-6 * sim.forward_s);
        EXPECT_NEAR(sim.backward_s, plan.predicted.backward_s, 1e-6 * sim.backward_s);
        EXPECT_NEAR(sim.exposed_s, plan.predicted.exposed_s, 1e-6 * sim.step_s());
      }
    }
  }
}

TEST(Simulate, HcmsHidesWhatUlyssesCannotWhereCommunicationIsALargeShare) {
  const Mask mask = full_mask(16384, 16384);
  MachineModel machine = plain_machine();
  DistAttnConfig config = config_for(4);
  config.heads.num_heads_kv = 32;
  for (const double rate : {300e9, 30e9}) {
    machine.inside.bytes_per_s = rate;
    const StrategyPrediction ulysses = simulate(mask, config, machine, "ulysses");
    const StrategyPrediction hcms = simulate(mask, config, machine, "hcms");
    EXPECT_EQ(hcms.forward_bytes, ulysses.forward_bytes);
    EXPECT_NEAR(hcms.compute_s, ulysses.compute_s, 1e-9);  // constants are plain: a chunk costs nothing
    EXPECT_LT(hcms.exposed_s, 0.6 * ulysses.exposed_s);
    EXPECT_LT(hcms.step_s(), ulysses.step_s());
    config.strategy.head_chunks = {8};  // all of a rank's heads at once
    EXPECT_DOUBLE_EQ(simulate(mask, config, machine, "hcms").step_s(), ulysses.step_s());
    config.strategy.head_chunks = {};
  }
}

TEST(Simulate, ARingOfRingsCrossesNodesLess) {
  const Mask mask = full_mask(65536, 65536);
  MachineModel machine = plain_machine();
  machine.ranks_per_node = 4;
  machine.between.bytes_per_s = 3e9;
  DistAttnConfig config = config_for(16);
  config.strategy = {Strategy::kTangram, 1, 4, {}};  // parameters of loong_train alone: rings of a node
  const StrategyPrediction rings = simulate(mask, config, machine, "loong_train");
  const StrategyPrediction ring = simulate(mask, config, machine, "ring");
  const double block = 65536.0 / 16 * 4096;
  // One ring: 4 of 16 hops of each round cross. Rings of nodes: every rank crosses, once for each further node; and
  // gradients, which are twice as large, once more.
  EXPECT_EQ(ring.between_bytes, 4 * (2 * 15 + 2 * 16) * block);
  EXPECT_EQ(rings.between_bytes, 16 * (2 * 3 + 2 * 4) * block);
  EXPECT_LT(rings.between_bytes, ring.between_bytes);
  EXPECT_EQ(rings.forward_bytes, ring.forward_bytes);
  // What crosses does so over the links of all ranks, a round ahead.
  EXPECT_LT(rings.exposed_s, 0.5 * ring.exposed_s);
}

TEST(Simulate, HeadsInsideANodeSpareTheNetwork) {
  const Mask mask = causal_mask(131072, 131072);
  DistAttnConfig config = config_for(16);
  config.strategy.ulysses_degree = 8;
  const StrategyPrediction usp = simulate(mask, config, {}, "usp");
  // Blocks of a node's rows go round: each of 16 ranks sends its share of heads once forward; backward once again, and
  // gradients there and home.
  const double block = 131072.0 / 2 * 2 * 128 * 2;
  EXPECT_EQ(usp.between_bytes, 16 * (2 * block + 2 * 2 * block));
  EXPECT_LT(usp.between_bytes, simulate(mask, config, {}, "ulysses").between_bytes);
}

TEST(Simulate, HybridCpHoldsWhatItsPlanDoes) {
  for (const int64_t document_rows : {0, 500, 4096}) {
    for (const Mask& mask : {documents(12288, 17, 2), causal_mask(12288, 12288), documents(12288, 500, 3)}) {
      DistAttnConfig config = config_for(12);
      config.strategy = {Strategy::kHybridCp, 0, 0, {}, document_rows};
      const StrategyPrediction sim = simulate(mask, config, {}, "hybrid_cp");
      ASSERT_EQ(sim.infeasible, "");
      config.cost = cost_model_of({});
      const Plan plan = make_plan(mask, config);
      EXPECT_DOUBLE_EQ(sim.balance, plan.balance());
      double peak = 0;
      for (int r = 0; r < 12; ++r) peak = std::max(peak, static_cast<double>(plan.peak_bytes(r)));
      EXPECT_EQ(sim.peak_bytes, peak);
      EXPECT_EQ(static_cast<double>(sim.kv_rows_moved) * 4096, sim.forward_bytes);
    }
  }
}

TEST(Simulate, HybridCpCrossesNodesOnlyWithDocumentsThatDo) {
  MachineModel machine = plain_machine();
  machine.ranks_per_node = 4;
  DistAttnConfig config = config_for(8);
  config.strategy = {Strategy::kHybridCp, 0, 0, {}, 1024};
  // Two documents on four ranks each: all in their nodes. As long a document on all ranks: two of eight hops cross,
  // of seven turns in both passes, and of its gradients one more.
  const StrategyPrediction inside =
      simulate(varlen_mask(std::vector<int64_t>{0, 4096, 8192}, true), config, machine, "hybrid_cp");
  EXPECT_EQ(inside.between_bytes, 0);
  EXPECT_EQ(inside.kv_rows_moved, 3 * 8192);
  const StrategyPrediction across = simulate(causal_mask(8192, 8192), config, machine, "hybrid_cp");
  EXPECT_EQ(across.between_bytes, 2 * 1024.0 * (7 * 2 * 4096 + 7 * 8192));
  EXPECT_EQ(across.max_rank_bytes, 7 * 1024.0 * (2 * 4096 + 8192));
  machine.between.bytes_per_s /= 10;
  EXPECT_GT(simulate(causal_mask(8192, 8192), config, machine, "hybrid_cp").step_s(), across.step_s());
}

TEST(Simulate, HybridCpCannotHideWhatThreadsOfTheKernelsMove) {
  MachineModel machine = plain_machine();
  const Mask mask = causal_mask(32768, 32768);
  const StrategyPrediction hidden = simulate(mask, config_for(4), machine, "hybrid_cp");
  machine.engine = CommEngine::kHostThreads;
  const StrategyPrediction bare = simulate(mask, config_for(4), machine, "hybrid_cp");
  EXPECT_NEAR(bare.exposed_s, 3 * 8192.0 * (2 * 4096 + 8192) / 300e9, 1e-9);
  EXPECT_NEAR(bare.step_s(), bare.compute_s + bare.exposed_s, 1e-9);
  EXPECT_LT(hidden.step_s(), bare.step_s());
}

TEST(Simulate, WhatStrategiesCannotDoIsSaid) {
  const Mask mask = causal_mask(65536, 65536);
  EXPECT_EQ(simulate(mask, config_for(64), {}, "ulysses").infeasible, "");
  const StrategyPrediction prediction = simulate(mask, config_for(128), {}, "ulysses");
  EXPECT_EQ(prediction.infeasible,
            "ulysses over 128 head ranks needs num_heads_q to be a multiple of these (got num_heads_q=64)");
  EXPECT_EQ(prediction.step_s(), 0);
  DistAttnConfig config = config_for(8);
  config.strategy.ulysses_degree = 3;
  EXPECT_THAT(simulate(mask, config, {}, "usp").infeasible,
              testing::HasSubstr("needs ulysses_degree that divide cp_size"));
  EXPECT_EQ(simulate(mask, config, {}, "ring").infeasible, "");  // has no head ranks
}

TEST(Simulate, CrossAttention) {
  const Mask mask = full_mask(4096, 8192);
  EXPECT_EQ(simulate(mask, config_for(4), {}, "tangram").kv_rows_moved, 3 * 8192);
  for (const std::string_view strategy : kGridStrategies) {
    EXPECT_GT(simulate(mask, config_for(4), {}, strategy).step_s(), 0) << strategy;
  }
  EXPECT_EQ(simulate(mask, config_for(4), {}, "ring").kv_rows_moved, 3 * 8192);
}

TEST(Simulate, CommunicationOnWorkersSlowsKernels) {
  const Mask mask = causal_mask(131072, 131072);
  MachineModel machine;
  const StrategyPrediction copies = simulate(mask, config_for(8), machine, "tangram");
  machine.engine = CommEngine::kWorkers;
  machine.comm_workers = 24;
  const StrategyPrediction workers = simulate(mask, config_for(8), machine, "tangram");
  EXPECT_GT(workers.step_s(), copies.step_s() * 1.15);  // 132 / 108
  EXPECT_LT(workers.step_s(), copies.step_s() * 1.30);
}

TEST(Simulate, BetterMachinesAreNotSlower) {
  const Mask mask = documents(131072, 70, 9);
  for (const std::string_view strategy : simulated_strategies()) {
    MachineModel base;
    base.ranks_per_node = 4;
    DistAttnConfig config = config_for(16);
    if (strategy == "hybrid_cp") config.strategy.document_rows = 2048;  // it assigns another way for another link
    const double before = simulate(mask, config, base, strategy).step_s();
    ASSERT_GT(before, 0) << strategy;
    MachineModel faster = base;
    faster.inside.bytes_per_s *= 2;
    faster.between.bytes_per_s *= 2;
    // Other constants give cuts another price, so that the planner assigns differently; not better every time.
    EXPECT_LE(simulate(mask, config, faster, strategy).step_s(), before * 1.03) << strategy;
    faster = base;
    faster.forward.flops_per_s *= 2;
    faster.backward.flops_per_s *= 2;
    EXPECT_LE(simulate(mask, config, faster, strategy).step_s(), before * 1.03) << strategy;
  }
}

TEST(Simulate, ThousandsOfRanks) {
  const Mask mask = causal_mask(524288, 524288);
  // Tables grow with the square of the ranks.
  const int num_ranks = support::kSanitized ? 256 : support::is_long_run() ? 2048 : 1024;
  for (const std::string_view strategy :
       {"tangram", "tangram_hierarchical", "tangram_nodes", "ring", "all_gather", "usp", "loong_train", "hybrid_cp"}) {
    const StrategyPrediction few = simulate(mask, config_for(64), {}, strategy);
    const StrategyPrediction many = simulate(mask, config_for(num_ranks), {}, strategy);
    EXPECT_LT(many.step_s(), few.step_s()) << strategy;
    EXPECT_LT(many.peak_bytes, few.peak_bytes) << strategy;
    EXPECT_GT(many.forward_bytes, few.forward_bytes) << strategy;
  }
}

TEST(Simulate, RefusesWhatItCannotSimulate) {
  const Mask mask = causal_mask(4096, 4096);
  const auto message_of = [&](const Mask& m, const DistAttnConfig& config, const MachineModel& machine,
                              std::string_view strategy) -> std::string {
    try {
      simulate(m, config, machine, strategy);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message_of(mask, config_for(4), {}, "telepathy"), testing::HasSubstr("must be one of tangram, "));
  MachineModel broken;
  broken.inside.bytes_per_s = 0;
  EXPECT_THAT(message_of(mask, config_for(4), broken, "ring"),
              testing::HasSubstr("machine.inside.bytes_per_s must be positive (got 0)"));
  EXPECT_THAT(message_of(mask, config_for(5), {}, "tangram"),
              testing::HasSubstr("simulate: seqlen_q must be a multiple of cp_size * chunk_size"));
  DistAttnConfig kept = config_for(4);
  kept.overlap.keep_remote_kv = true;
  EXPECT_THAT(message_of(mask, kept, {}, "tangram"), testing::HasSubstr("keep_remote_kv is not modelled"));
  DistAttnConfig grouped = config_for(4);
  grouped.movement.head_groups = 2;
  EXPECT_THAT(message_of(mask, grouped, {}, "ring"), testing::HasSubstr("movement.head_groups needs a movement in"));
  DistAttnConfig of_documents = config_for(4);  // its parameters serve the strategies that have them
  of_documents.strategy = {Strategy::kTangram, 2, 0, {}, -5};
  EXPECT_EQ(message_of(mask, of_documents, {}, "usp"), "nothing was thrown");
  EXPECT_EQ(simulate(mask, of_documents, {}, "hybrid_cp").infeasible,
            "strategy.document_rows must not be negative (got -5)");
}

}  // namespace
}  // namespace tangram
