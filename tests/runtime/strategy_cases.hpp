// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What all tests of the other strategies share: names, shapes of heads, plans, and the loops over masks and grids.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "plan/program/grid_plans.hpp"
#include "runtime/dense_backend.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/step.hpp"
#include "support/sample.hpp"

namespace tangram::testing {

// Partial results are rounded to float32 once a step, and sums once per contribution.
inline constexpr double kStrategyTolerance = 2e-6;

/// One for each of kStrategies.
inline std::vector<std::shared_ptr<const Plan>> plans_of(const Mask& mask, const HeadConfig& heads, int cp_size,
                                                         DType reduce_dtype = DType::kFloat32) {
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const Strategy strategy : kStrategies) {
    plans.push_back(plan_of(mask, heads, cp_size, {strategy, 0, 0, {}}, reduce_dtype));
  }
  return plans;
}

/// Executes a plan over its ranks.
using PlanStep = std::function<StepResults(std::shared_ptr<const Plan>, const StepOptions&, const StepInputs&)>;

/// Every strategy of the sample against one rank.
inline void expect_strategies_close(const Mask& mask, const StepOptions& options, int cp_size, const PlanStep& step,
                                    support::Sample& sample) {
  const DenseBackend backend;
  const StepInputs inputs = make_inputs(mask, options);
  const StepResults expected = single_step(mask, options, inputs, backend);
  for (const Strategy strategy : kStrategies) {
    if (!sample.takes_next()) continue;
    SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size << ", heads "
                                      << options.heads.num_heads_q << "/" << options.heads.num_heads_kv << ", kept "
                                      << options.use_kept);
    const auto plan = plan_of(mask, options.heads, cp_size, {strategy, 0, 0, {}});
    expect_close(step(plan, options, inputs), expected, kStrategyTolerance);
  }
}

/// Every strategy, number of ranks and kind of heads on one mask, of which the sample is another for each. Sinks and
/// the backward pass without kept tensors meet every strategy over the families.
inline void expect_family_close(const NamedMask& family, std::span<const int> cp_sizes, int head_dim, int head_dim_v,
                                const PlanStep& step) {
  support::Sample sample(3, number_of(family));
  for (const int cp_size : cp_sizes) {
    for (int variant = 0; variant < 3; ++variant) {
      StepOptions options;
      options.heads = heads_of(cp_size, variant, head_dim, head_dim_v);
      options.seqlen_sink = (cp_size + variant) % 2;
      options.use_kept = variant != 1;
      expect_strategies_close(family.mask, options, cp_size, step, sample);
    }
  }
}

/// Sinks of single rows, which move with heads.
inline void expect_row_sinks_close(std::span<const int> cp_sizes, int head_dim, int head_dim_v, const PlanStep& step) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  support::Sample sample(3);
  for (const int cp_size : cp_sizes) {
    for (int variant = 0; variant < 3; ++variant) {
      for (const bool use_kept : {true, false}) {
        StepOptions options;
        options.heads = heads_of(cp_size, variant, head_dim, head_dim_v);
        options.seqlen_sink = 3;
        options.sink_layout = SinkLayout::kSsh;
        options.use_kept = use_kept;
        expect_strategies_close(mask, options, cp_size, step, sample);
      }
    }
  }
}

/// Layouts of eight ranks that no default makes.
inline void expect_grid_shapes_close(int head_dim, int head_dim_v, const PlanStep& step) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(8, 0, head_dim, head_dim_v);
  const StepInputs inputs = make_inputs(mask, options);
  const StepResults expected = single_step(mask, options, inputs, backend);
  for (const StrategyConfig& strategy :
       {StrategyConfig{Strategy::kUsp, 1, 0, {}}, StrategyConfig{Strategy::kUsp, 2, 0, {}},
        StrategyConfig{Strategy::kUsp, 8, 0, {}}, StrategyConfig{Strategy::kLoongTrain, 1, 1, {}},
        StrategyConfig{Strategy::kLoongTrain, 1, 2, {}}, StrategyConfig{Strategy::kLoongTrain, 1, 4, {}},
        StrategyConfig{Strategy::kLoongTrain, 2, 2, {}}, StrategyConfig{Strategy::kLoongTrain, 1, 8, {}}}) {
    SCOPED_TRACE(::testing::Message() << to_string(strategy.name) << " " << strategy.ulysses_degree << " "
                                      << strategy.inner_ring_size);
    expect_close(step(plan_of(mask, options.heads, 8, strategy), options, inputs), expected, kStrategyTolerance);
  }
}

/// Queries and keys of different length, by the strategies' own dispatches and by given ones.
inline void expect_cross_attention_close(int head_dim, int head_dim_v, const PlanStep& step) {
  const Mask mask = causal_mask(120, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 1, head_dim, head_dim_v);
  const StepInputs inputs = make_inputs(mask, options);
  const StepResults expected = single_step(mask, options, inputs, backend);
  const Dispatch q_dispatch{4, 10, {2, 0, 1, 3, 3, 0, 2, 1, 0, 1, 2, 3}};
  const Dispatch k_dispatch{4, 30, {1, 0, 3, 2, 0, 3, 1, 2}};
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(to_string(strategy));
    const auto plan = plan_of(mask, options.heads, 4, {strategy, 0, 0, {}});
    expect_close(step(plan, options, inputs), expected, kStrategyTolerance);
    const auto scattered = std::make_shared<const Plan>(make_plan(mask, plan->config, q_dispatch, k_dispatch));
    expect_close(step(scattered, options, inputs), expected, kStrategyTolerance);
  }
}

}  // namespace tangram::testing
