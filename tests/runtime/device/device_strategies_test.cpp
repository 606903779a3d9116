// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The strategies other than Tangram's own on GPU memory, against the CPU backend on a single rank. What they send and
// in which order is tested without a GPU (runtime/device/program_attention_test.cpp). Needs a Hopper GPU; skipped
// elsewhere.
#include <gtest/gtest.h>

#include <atomic>

#include "runtime/device/device_transports.hpp"
#include "runtime/device/row_kernels.hpp"
#include "runtime/strategy_cases.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::cpu_step;
using testing::DeviceRun;
using testing::kStrategies;
using testing::plan_of;
using testing::plans_of;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

constexpr int64_t kSeqlen = 1536;
// Tolerance as in device_dist_attention_test.cpp: the kernels round probabilities to 16 bits.
constexpr double kTolerance = 6e-3;

class DeviceStrategies : public testing::OverTransports {
 protected:
  /// A step by each plan, one after the other over the same communicator; results as rank 0 has them.
  std::vector<StepResults> steps(const std::vector<std::shared_ptr<const Plan>>& plans, const StepOptions& options,
                                 const StepInputs& inputs, const DeviceRun& run = {},
                                 DeviceOverlap overlap = DeviceOverlap::kAuto) const {
    DistAttentionOptions how{.forward = overlap, .backward = overlap};
    how.result_dtype = options.result_dtype;
    how.grad_dtype = options.grad_dtype;
    how.row_sinks = options.sink_layout == SinkLayout::kSsh ? options.seqlen_sink : 0;
    std::vector<StepResults> of_rank_0;
    testing::run_device_ranks(plans[0]->cp_size(), GetParam().make, [&](DeviceCommunicator& comm) {
      const Sm90Backend backend;
      for (const std::shared_ptr<const Plan>& plan : plans) {
        DistAttention attention(plan, comm, backend, how);
        StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
        testing::device_rank_step(options, run, inputs, comm, attention, results);
        if (comm.rank() == 0) of_rank_0.push_back(std::move(results));
      }
    });
    return of_rank_0;
  }
};

TEST_P(DeviceStrategies, EqualTheCpuReference) {
  const std::vector<int64_t> cu_seqlens = {0, 100, 611, 612, 1000, kSeqlen};
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, 0}, {0, 3}, {1, 2}, {3, 0}, {3, 3}, {5, 1}};
  struct Variant {
    Mask mask;
    int cp_size;
    HeadConfig heads;
    DType reduce_dtype;
    bool use_kept;
    int64_t seqlen_sink;
  };
  const DType bf16 = DType::kBFloat16, f16 = DType::kFloat16, f32 = DType::kFloat32;
  // Every value of each option meets several of the others; heads divide by the ranks, or ranks by K/V heads.
  const Variant variants[] = {
      {full_mask(kSeqlen, kSeqlen), 2, {4, 4, 128, 128, bf16}, f32, true, 0},
      {causal_mask(kSeqlen, kSeqlen), 4, {8, 4, 128, 128, bf16}, bf16, false, 2},
      {varlen_mask(cu_seqlens, true), 2, {8, 1, 64, 64, f16}, f32, false, 1},
      {sliding_window_mask(kSeqlen, {200, 9}), 3, {6, 3, 64, 64, bf16}, f32, true, 0},
      {block_sparse_mask(kSeqlen, kSeqlen, 256, 384, blocks), 4, {8, 1, 128, 128, bf16}, bf16, true, 0},
      {Mask(kSeqlen, kSeqlen, {}), 2, {4, 2, 128, 128, bf16}, f32, false, 0},
  };
  for (const Variant& variant : variants) {
    if (!can(variant.cp_size)) continue;
    StepOptions options;
    options.heads = variant.heads;
    options.use_kept = variant.use_kept;
    options.seqlen_sink = variant.seqlen_sink;
    const StepInputs inputs = testing::make_inputs(variant.mask, options);
    const StepResults expected = cpu_step(variant.mask, options, inputs);
    const auto plans = plans_of(variant.mask, options.heads, variant.cp_size, variant.reduce_dtype);
    const std::vector<StepResults> results = steps(plans, options, inputs, {.num_steps = 2});
    for (size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << to_string(kStrategies[i]) << ", cp_size " << variant.cp_size << ", heads "
                                        << variant.heads.num_heads_q << "/" << variant.heads.num_heads_kv << ", kept "
                                        << variant.use_kept);
      testing::expect_close(results[i], expected, kTolerance);
    }
  }
}

TEST_P(DeviceStrategies, HeadDimsOfEveryClassEqualTheCpuReference) {
  if (!can(2)) return;
  const std::vector<int64_t> cu_seqlens = {0, 100, 611, 612, 1000, kSeqlen};
  const Mask mask = varlen_mask(cu_seqlens, true);
  for (const auto& [dim, dim_v] : {std::pair{32, 32}, {96, 96}, {192, 128}, {256, 256}, {80, 64}}) {
    SCOPED_TRACE(::testing::Message() << "head dims " << dim << ", " << dim_v);
    StepOptions options;
    options.heads = {4, 2, dim, dim_v, DType::kBFloat16};
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = cpu_step(mask, options, inputs);
    const auto plans = plans_of(mask, options.heads, 2, DType::kFloat32);
    const std::vector<StepResults> results = steps(plans, options, inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE(to_string(kStrategies[i]));
      testing::expect_close(results[i], expected, kTolerance);
    }
  }
}

TEST_P(DeviceStrategies, EveryLaunchOrderGivesTheSameResults) {
  if (!can(2)) return;
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = cpu_step(mask, options, inputs);
  for (const LaunchOrder order : {LaunchOrder::kSmMargin, LaunchOrder::kHighPriority, LaunchOrder::kKernelBarrier}) {
    std::vector<std::shared_ptr<const Plan>> plans;
    for (const auto& plan : plans_of(mask, options.heads, 2, DType::kFloat32)) {
      DistAttnConfig config = plan->config;
      config.overlap.launch_order = order;
      plans.push_back(std::make_shared<const Plan>(make_plan(mask, config)));
    }
    for (const StepResults& result : steps(plans, options, inputs)) {
      SCOPED_TRACE(to_string(order));
      testing::expect_close(result, expected, kTolerance);
    }
  }
}

TEST_P(DeviceStrategies, HcmsHasTheBitsOfUlysses) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {16, 8, 128, 128, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  options.attn.deterministic = true;
  const StepInputs inputs = testing::make_inputs(mask, options);
  std::vector<std::shared_ptr<const Plan>> plans = {plan_of(mask, options.heads, 2, {Strategy::kUlysses, 0, 0, {}})};
  for (const std::vector<int>& chunks : {std::vector<int>{2, 2}, {1, 2, 1}, {3, 1}}) {
    plans.push_back(plan_of(mask, options.heads, 2, {Strategy::kHcms, 0, 0, chunks}));
  }
  const std::vector<StepResults> results = steps(plans, options, inputs);
  for (size_t i = 1; i < results.size(); ++i) testing::expect_same_bits(results[i], results[0]);
}

TEST_P(DeviceStrategies, SinksOfSingleRowsMoveWithTheHeads) {
  const Mask mask = sliding_window_mask(kSeqlen, {200, 0});
  for (const bool use_kept : {true, false}) {
    StepOptions options;
    options.heads = {8, 2, 128, 128, DType::kBFloat16};
    options.use_kept = use_kept;
    options.seqlen_sink = 2;
    options.sink_layout = SinkLayout::kSsh;
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = cpu_step(mask, options, inputs);
    const int cp_size = use_kept || !can(4) ? 2 : 4;  // with four, K/V heads are copied
    const auto plans = plans_of(mask, options.heads, cp_size);
    const std::vector<StepResults> results = steps(plans, options, inputs, {.num_steps = 2});
    for (size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << to_string(kStrategies[i]) << ", cp_size " << cp_size);
      testing::expect_close(results[i], expected, kTolerance);
    }
  }
}

TEST_P(DeviceStrategies, OverlapChangesNoBit) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  options.attn.deterministic = true;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plans = plans_of(mask, options.heads, 2);
  const std::vector<StepResults> beside = steps(plans, options, inputs, {.num_steps = 3});
  const std::vector<StepResults> apart = steps(plans, options, inputs, {}, DeviceOverlap::kNone);
  for (size_t i = 0; i < plans.size(); ++i) {
    SCOPED_TRACE(to_string(kStrategies[i]));
    testing::expect_same_bits(beside[i], apart[i]);
  }
}

// Six ranks, so that blocks land in memory of earlier ones several times in a pass.
TEST_P(DeviceStrategies, RingsOfSixRanksEqualTheCpuReference) {
  if (!can(6)) GTEST_SKIP() << "needs a GPU for each rank";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {4, 2, 64, 64, DType::kBFloat16};
  options.use_kept = true;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = cpu_step(mask, options, inputs);
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const StrategyConfig& strategy : {StrategyConfig{Strategy::kRing, 0, 0, {}},
                                         {Strategy::kLoongTrain, 1, 3, {}},
                                         {Strategy::kUsp, 2, 0, {}},
                                         {Strategy::kHybridCp, 0, 0, {}, 200}}) {
    plans.push_back(plan_of(mask, options.heads, 6, strategy));
  }
  const std::vector<StepResults> results = steps(plans, options, inputs, {.num_steps = 3});
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(describe(plans[i]->config.strategy));
    testing::expect_close(results[i], expected, kTolerance);
  }
}

TEST_P(DeviceStrategies, CapturedStepsReplay) {
  if (!GetParam().on_device) GTEST_SKIP() << "this transport waits on the host";
  if (testing::must_keep_step(2)) GTEST_SKIP() << "hosts cannot keep graphs in step: needs a GPU for each rank";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  options.attn.deterministic = true;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plans = plans_of(mask, options.heads, 2);
  const std::vector<StepResults> replayed = steps(plans, options, inputs, {.num_steps = 4, .as_graph = true});
  const std::vector<StepResults> eager = steps(plans, options, inputs);
  for (size_t i = 0; i < plans.size(); ++i) {
    SCOPED_TRACE(to_string(kStrategies[i]));
    testing::expect_same_bits(replayed[i], eager[i]);
  }
}

class DeviceStrategyBytes : public DeviceStrategies {};

TEST_P(DeviceStrategyBytes, EqualTheClosedForms) {
  if (!GetParam().on_device) GTEST_SKIP() << "this transport's counters include what the test itself moves";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plans = plans_of(mask, options.heads, 2);
  std::vector<std::atomic<int64_t>> bytes(plans.size());
  testing::run_device_ranks(2, GetParam().make, [&](DeviceCommunicator& comm) {
    const Sm90Backend backend;
    for (size_t i = 0; i < plans.size(); ++i) {
      DistAttention attention(plans[i], comm, backend);
      StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
      comm.reset_counters();
      testing::device_rank_step(options, {}, inputs, comm, attention, results);
      bytes[i] += comm.counters().bytes_received;
    }
  });
  for (size_t i = 0; i < plans.size(); ++i) {
    const GridTraffic expected = grid_traffic(*plans[i], {});
    EXPECT_EQ(bytes[i], expected.forward_bytes + expected.backward_bytes) << to_string(kStrategies[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Nccl, DeviceStrategies, ::testing::Values(testing::nccl()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceStrategies, ::testing::ValuesIn(testing::transports()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceStrategyBytes, ::testing::ValuesIn(testing::transports()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });
INSTANTIATE_TEST_SUITE_P(Nccl, DeviceStrategyBytes, ::testing::Values(testing::nccl()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(DeviceStrategyOptions, RefuseWhatProgramsCannotDo) {
  if (!testing::have_hopper()) GTEST_SKIP() << "needs a Hopper GPU";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const auto plan = plan_of(mask, {4, 4, 128, 128, DType::kBFloat16}, 1, {Strategy::kUlysses, 0, 0, {}});
  DistAttnConfig config = plan->config;
  config.overlap.launch_order = LaunchOrder::kCopyEngine;
  const auto engines = std::make_shared<const Plan>(make_plan(mask, config));
  const Sm90Backend backend;
  testing::run_device_ranks(1, testing::make_blocking, [&](DeviceCommunicator& comm) {
    EXPECT_THROW(DistAttention(plan, comm, backend, {.forward = DeviceOverlap::kSingleLaunch}), NotAvailable);
  });
  testing::run_device_ranks(1, testing::make_blocking, [&](DeviceCommunicator& comm) {
    EXPECT_THROW(DistAttention(engines, comm, backend), NotAvailable) << "over a transport without engines";
  });
}

TEST(FloatKernels, CopyColumnsAndFill) {
  if (testing::num_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  constexpr int64_t kRows = 300;
  std::vector<float> from(kRows * 12), to(kRows * 7, -1.0f);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  const testing::DeviceVector source(from), target(to);
  // Two columns from column 5 on to columns 1 and 2, and a filled column 4: more copies than one launch takes.
  std::vector<FloatCopy> copies;
  for (int64_t row = 0; row < kRows; row += 10) {
    copies.push_back({source.data() + row * 12 + 5, target.data() + row * 7 + 1, 12, 7, 10, 2, 0});
    copies.push_back({nullptr, target.data() + row * 7 + 4, 0, 7, 10, 1, 9.0f});
  }
  device::copy_floats(copies, nullptr);
  std::vector<float> got(to.size());
  target.fetch(got);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int column = 0; column < 7; ++column) {
      const float expected = column == 1 || column == 2 ? static_cast<float>(row * 12 + 4 + column)
                             : column == 4              ? 9.0f
                                                        : -1.0f;
      ASSERT_EQ(got[static_cast<size_t>(row * 7 + column)], expected) << row << ", " << column;
    }
  }
}

}  // namespace
}  // namespace tangram
