// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The strategies other than Tangram's own: results against one rank, and what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/host_steps.hpp"
#include "runtime/strategy_cases.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using ::testing::HasSubstr;
using testing::kCpSizes;
using testing::kSeqlen;
using testing::kStrategies;
using testing::NamedMask;
using testing::plan_of;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

HeadConfig heads_of(int cp_size, int variant, DType dtype = DType::kFloat32) {
  return testing::heads_of(cp_size, variant, 4, 3, dtype);
}

StepResults step_of_executor(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& inputs) {
  return testing::distributed_step(plan, options, inputs, DenseBackend());
}

class StrategyMasks : public ::testing::TestWithParam<NamedMask> {};

TEST_P(StrategyMasks, DistributedEqualsSingleRank) {
  testing::expect_family_close(GetParam(), kCpSizes, 4, 3, step_of_executor);
}

INSTANTIATE_TEST_SUITE_P(Dist, StrategyMasks, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Strategies, EveryShapeOfTheGrid) { testing::expect_grid_shapes_close(4, 3, step_of_executor); }

// The first head of a rank is not its number times a whole number of heads.
TEST(Strategies, TwoRanksShareEachOfSeveralHeads) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  StepOptions options;
  options.heads = heads_of(4, 3);
  ASSERT_EQ(options.heads.num_heads_kv, 2);
  const DenseBackend backend;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  for (const Strategy strategy : {Strategy::kUlysses, Strategy::kHcms, Strategy::kUsp, Strategy::kLoongTrain}) {
    SCOPED_TRACE(to_string(strategy));
    const auto plan = plan_of(mask, options.heads, 4, {strategy, 0, 0, {}});
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected,
                          testing::kStrategyTolerance);
  }
}

TEST(Strategies, AutoRunsWhatItChose) {
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 0);
  std::vector<Strategy> chosen;
  for (const Mask& mask : {full_mask(kSeqlen, kSeqlen), sliding_window_mask(kSeqlen, {8, 0})}) {
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = testing::single_step(mask, options, inputs, backend);
    DistAttnConfig config;
    config.cp_size = 4;
    config.heads = options.heads;
    config.strategy.name = Strategy::kAuto;
    config.cost = {1e12, 1e12, 1e6, 0, 0};  // bytes decide
    const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
    chosen.push_back(plan->config.strategy.name);
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected,
                          testing::kStrategyTolerance);
  }
  EXPECT_NE(chosen[0], Strategy::kTangram);
  EXPECT_EQ(chosen[1], Strategy::kTangram);
}

TEST(Strategies, CrossAttentionAndGivenDispatches) { testing::expect_cross_attention_close(4, 3, step_of_executor); }

TEST(Strategies, HcmsHasTheBitsOfUlysses) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {16, 8, 4, 4, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto step = [&](const StrategyConfig& strategy) {
    return testing::distributed_step(plan_of(mask, options.heads, 2, strategy), options, inputs, backend);
  };
  const StepResults ulysses = step({Strategy::kUlysses, 0, 0, {}});
  for (const std::vector<int>& chunks : {std::vector<int>{4}, {2, 2}, {1, 2, 1}, {1, 1, 1, 1}, {3, 1}, {}}) {
    const StepResults hcms = step({Strategy::kHcms, 0, 0, chunks});
    testing::expect_same_bits(hcms, ulysses);
  }
}

// Lengths of all kinds: on one rank, on sub-groups of several sizes at once, and fully masked padding.
TEST(Strategies, HybridCpOfRandomDocuments) {
  std::mt19937 rng(23);
  const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  const DenseBackend backend;
  for (int n = 0; n < support::rounds(12, 12); ++n) {
    const int cp_size = kCpSizes[static_cast<size_t>(n) % std::size(kCpSizes)];
    std::vector<AttnSlice> slices;
    for (int64_t row = 0; row < kSeqlen - 3;) {
      const int64_t end = std::min(kSeqlen - 3, row + draw(1, draw(0, 2) == 0 ? 120 : 25));
      slices.push_back(n % 2 == 0 ? AttnSlice::causal({row, end}, {row, end})
                                  : AttnSlice::full({row, end}, {row, end}));
      row = end;
    }
    const Mask mask(kSeqlen, kSeqlen, slices);
    StepOptions options;
    options.heads = heads_of(cp_size, n % 3);
    options.seqlen_sink = n % 2;
    options.sink_layout = n % 4 == 1 ? SinkLayout::kSsh : SinkLayout::kSh;
    const StepInputs inputs = testing::make_inputs(mask, options, static_cast<uint32_t>(n));
    const StepResults expected = testing::single_step(mask, options, inputs, backend);
    for (const int64_t document_rows : {0, 1, 12}) {
      SCOPED_TRACE(::testing::Message() << n << ", cp_size " << cp_size << ", document_rows " << document_rows);
      const auto plan = plan_of(mask, options.heads, cp_size, {Strategy::kHybridCp, 0, 0, {}, document_rows});
      testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected,
                            testing::kStrategyTolerance);
    }
  }
}

TEST(Strategies, HalfPrecisionGradientsMoveInReduceDtype) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 2, DType::kBFloat16);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(to_string(strategy));
    const auto plan = plan_of(mask, options.heads, 4, {strategy, 0, 0, {}}, DType::kBFloat16);
    // bfloat16 keeps 8 bits; up to five roundings of sums whose terms are of the size of the result.
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, 4e-2);
  }
}

void expect_refused(const StrategyConfig& strategy, const HeadConfig& heads, int cp_size, const std::string& text,
                    DispatchAlgorithm algorithm = DispatchAlgorithm::kAuto) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.strategy = strategy;
  config.dispatch.algorithm = algorithm;
  try {
    make_plan(full_mask(kSeqlen, kSeqlen), config);
    ADD_FAILURE() << "expected: " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Strategies, WhatTheyCannotDoIsRefusedByThePlan) {
  const HeadConfig six{6, 6, 4, 4, DType::kFloat32};
  expect_refused({Strategy::kUlysses, 0, 0, {}}, six, 4, "needs num_heads_q to be a multiple of these");
  expect_refused({Strategy::kUlysses, 0, 0, {}}, {12, 6, 4, 4, DType::kFloat32}, 4,
                 "needs num_heads_kv to be a multiple or a divisor of these (got num_heads_kv=6)");
  expect_refused({Strategy::kUsp, 3, 0, {}}, six, 4, "needs ulysses_degree that divide cp_size (got 3 and 4)");
  expect_refused({Strategy::kLoongTrain, 1, 3, {}}, six, 4, "needs an inner_ring_size that divides");
  expect_refused({Strategy::kRing, 2, 0, {}}, six, 4,
                 "strategy.ulysses_degree needs strategy usp or loong_train (got ring)");
  expect_refused({Strategy::kTangram, 2, 0, {}}, six, 4,
                 "strategy.ulysses_degree needs strategy usp or loong_train (got tangram)");
  expect_refused({Strategy::kUsp, 2, 2, {}}, six, 4, "strategy.inner_ring_size needs strategy loong_train (got usp)");
  expect_refused({Strategy::kUlysses, 0, 0, {1, 2}}, six, 2, "strategy.head_chunks needs strategy hcms (got ulysses)");
  expect_refused({Strategy::kHcms, 0, 0, {1, 1}}, six, 2, "must add up to the 3 K/V heads of a rank (got 2)");
  expect_refused({Strategy::kHcms, 0, 0, {4, -1}}, six, 2, "strategy.head_chunks must be positive (got -1)");
  expect_refused({Strategy::kRing, 0, 0, {}, 7}, six, 2, "strategy.document_rows needs strategy hybrid_cp (got ring)");
  expect_refused({Strategy::kHybridCp, 0, 0, {}, -1}, six, 2, "strategy.document_rows must not be negative (got -1)");
  expect_refused({Strategy::kHybridCp, 0, 0, {}}, six, 2,
                 "hybrid_cp assigns rows by documents (got dispatch.algorithm=zigzag)", DispatchAlgorithm::kZigzag);
  expect_refused({Strategy::kRing, 0, 0, {}}, six, 2,
                 "assigns rows sequential or zigzag (got dispatch.algorithm=min_heap)", DispatchAlgorithm::kMinHeap);
}

TEST(Strategies, SinksOfSingleRowsMoveWithTheHeads) {
  constexpr int kSizes[] = {2, 4};
  testing::expect_row_sinks_close(kSizes, 4, 3, step_of_executor);
}

TEST(Strategies, RanksOfDifferentStrategiesFindOut) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  const HeadConfig heads = heads_of(2, 0);
  const auto ring = plan_of(mask, heads, 2, {Strategy::kRing, 0, 0, {}});
  const auto gather = plan_of(mask, heads, 2, {Strategy::kAllGather, 0, 0, {}});
  run_local_ranks(2, [&](Communicator& comm) {
    EXPECT_THROW(DistAttention(comm.rank() == 0 ? ring : gather, comm, backend), InvalidArgument);
  });
}

TEST(Strategies, PlansSurviveJson) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  for (const Strategy strategy : kStrategies) {
    const auto plan = plan_of(mask, heads_of(4, 0), 4, {strategy, 0, 0, {}});
    EXPECT_EQ(plan_from_json(plan_to_json(*plan)), *plan) << to_string(strategy);
    EXPECT_THAT(explain(*plan), HasSubstr("strategy: " + std::string(to_string(strategy))));
  }
  const Mask documents = varlen_mask(std::vector<int64_t>{0, 120, 180, 240}, false);
  const auto hybrid = plan_of(documents, heads_of(4, 0), 4, {Strategy::kHybridCp, 0, 0, {}, 60});
  EXPECT_EQ(plan_from_json(plan_to_json(*hybrid)), *hybrid);
  EXPECT_THAT(explain(*hybrid), HasSubstr("whole on one rank, without communication: 2 document(s) of 120 query rows"));
  EXPECT_THAT(explain(*hybrid), HasSubstr("zigzag over sub-groups of 2 ranks: 1 document(s) of 120 query rows"));
}

TEST(Strategies, NamesGoBothWays) {
  for (const Strategy strategy : kStrategies) EXPECT_EQ(parse_strategy(to_string(strategy)), strategy);
  EXPECT_THROW(parse_strategy("rings"), InvalidArgument);
}

}  // namespace
}  // namespace tangram
