// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which queries move on GPU memory, against the CPU backend on a single rank. What they send and in which
// order is tested without a GPU (runtime/device/program_movement_test.cpp). Needs a Hopper GPU; skipped elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "runtime/device/device_transports.hpp"
#include "runtime/movement_cases.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using support::message_of;
using testing::cpu_step;
using testing::DeviceRun;
using ::testing::HasSubstr;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

constexpr int64_t kSeqlen = 1536;
// Tolerance as in device_dist_attention_test.cpp: the kernels round probabilities to 16 bits.
constexpr double kTolerance = 6e-3;

DistAttnConfig config_of(int cp_size, const HeadConfig& heads, Movement algorithm, int head_groups) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.dispatch.chunk_size = 64;
  config.movement = {algorithm, head_groups};
  return config;
}

class DeviceMovement : public testing::OverTransports {
 protected:
  StepResults step(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& inputs,
                   const DeviceRun& run = {}, DeviceOverlap overlap = DeviceOverlap::kAuto) const {
    return testing::device_step(plan, options, inputs, {.forward = overlap, .backward = overlap}, GetParam().make, run);
  }
};

TEST_P(DeviceMovement, EqualsTheCpuReference) {
  const std::vector<int64_t> cu_seqlens = {0, 100, 611, 612, 1000, kSeqlen};
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, 0}, {0, 3}, {1, 2}, {3, 0}, {3, 3}, {5, 1}};
  struct Variant {
    Mask mask;
    int cp_size;
    HeadConfig heads;
    int groups;
    DType reduce_dtype;
    bool keeps;
    int64_t seqlen_sink;
    SinkLayout sink_layout;
    DType result_dtype;
  };
  const DType bf16 = DType::kBFloat16, f16 = DType::kFloat16, f32 = DType::kFloat32;
  // Every value of each option meets several of the others. With two heads in a group one float of each is not 16
  // bytes.
  const Variant variants[] = {
      {full_mask(kSeqlen, kSeqlen), 2, {4, 4, 128, 128, bf16}, 1, f32, true, 0, SinkLayout::kSh, bf16},
      {causal_mask(kSeqlen, kSeqlen), 4, {8, 4, 128, 128, bf16}, 2, bf16, false, 2, SinkLayout::kSh, f32},
      {varlen_mask(cu_seqlens, true), 2, {8, 1, 64, 64, f16}, 1, f32, false, 1, SinkLayout::kSsh, f16},
      {sliding_window_mask(kSeqlen, {200, 9}), 3, {6, 3, 64, 64, bf16}, 3, f32, true, 0, SinkLayout::kSh, f32},
      {block_sparse_mask(kSeqlen, kSeqlen, 256, 384, blocks),
       4,
       {8, 4, 128, 128, bf16},
       4,
       bf16,
       true,
       2,
       SinkLayout::kSsh,
       bf16},
      {Mask(kSeqlen, kSeqlen, {}), 2, {4, 2, 128, 128, bf16}, 2, f32, false, 1, SinkLayout::kSh, f32},
      {causal_mask(kSeqlen, kSeqlen), 1, {8, 4, 128, 128, bf16}, 2, f32, false, 1, SinkLayout::kSh, bf16},
  };
  unsigned seed = 1;
  for (const Variant& variant : variants) {
    if (!can(variant.cp_size)) continue;
    StepOptions options;
    options.heads = variant.heads;
    options.seqlen_sink = variant.seqlen_sink;
    options.sink_layout = variant.sink_layout;
    options.result_dtype = variant.result_dtype;
    const StepInputs inputs = testing::make_inputs(variant.mask, options);
    const StepResults expected = cpu_step(variant.mask, options, inputs);
    DistAttnConfig config = config_of(variant.cp_size, options.heads, Movement::kQo, variant.groups);
    config.reduce_dtype = variant.reduce_dtype;
    config.overlap.keep_remote_kv = variant.keeps;
    const auto drawn = testing::random_plan(variant.mask, config, 3, seed++);
    for (const auto& plan : {testing::plan_of(variant.mask, config), drawn}) {
      SCOPED_TRACE(::testing::Message() << "variant " << seed - 2 << ", cp_size " << variant.cp_size
                                        << (plan == drawn ? ", drawn" : ", planned"));
      testing::expect_close(step(plan, options, inputs, {.num_steps = 2}), expected, kTolerance);
    }
  }
}

TEST_P(DeviceMovement, AlgorithmsEqualTheCpuReference) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = cpu_step(mask, options, inputs);
  for (const Movement algorithm : {Movement::kAuto, Movement::kGreedyRandomGrid, Movement::kBinaryGreedy,
                                   Movement::kNetworkFlow, Movement::kLeastBytes}) {
    SCOPED_TRACE(to_string(algorithm));
    const auto plan =
        testing::plan_of(mask, config_of(2, options.heads, algorithm, algorithm == Movement::kAuto ? 0 : 1));
    testing::expect_close(step(plan, options, inputs), expected, kTolerance);
  }
}

TEST_P(DeviceMovement, HeadGroupsSeeDifferentCells) {
  const std::vector<Mask> masks = {causal_mask(kSeqlen, kSeqlen), sliding_window_mask(kSeqlen, {120, 5})};
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  const StepInputs inputs = testing::make_inputs(masks[0], options);
  StepResults expected = cpu_step(masks[0], options, inputs);
  testing::take_heads(expected, cpu_step(masks[1], options, inputs), 1, 2);
  for (const Movement algorithm : {Movement::kKv, Movement::kQo, Movement::kAuto}) {
    SCOPED_TRACE(to_string(algorithm));
    DistAttnConfig config = config_of(2, options.heads, Movement::kKv, 0);
    const Plan rows = make_plan(masks[0], config);
    config.movement.algorithm = algorithm;
    const auto plan = std::make_shared<const Plan>(make_plan(masks, config, rows.q_dispatch, rows.k_dispatch));
    testing::expect_close(step(plan, options, inputs), expected, kTolerance);
  }
}

/// bfloat16 results of deterministic kernels.
StepOptions deterministic_options() {
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  options.seqlen_sink = 1;
  options.attn.deterministic = true;
  return options;
}

TEST_P(DeviceMovement, OverlapAndRepetitionChangeNoBit) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const StepOptions options = deterministic_options();
  const StepInputs inputs = testing::make_inputs(mask, options);
  const int cp_size = can(4) ? 4 : 2;
  const auto plan = testing::random_plan(mask, config_of(cp_size, options.heads, Movement::kQo, 2), 4, 3);
  const StepResults beside = step(plan, options, inputs, {.num_steps = 3});
  const StepResults apart = step(plan, options, inputs, {}, DeviceOverlap::kNone);
  testing::expect_same_bits(beside, apart);
  EXPECT_EQ(beside.dsink, apart.dsink);
  EXPECT_EQ(beside.max_logits, apart.max_logits);
}

TEST_P(DeviceMovement, KeptRowsGiveTheSameBits) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const StepOptions options = deterministic_options();
  const StepInputs inputs = testing::make_inputs(mask, options);
  DistAttnConfig config = config_of(2, options.heads, Movement::kQo, 2);
  config.overlap.keep_remote_kv = true;
  const auto keeps = testing::random_plan(mask, config, 3, 5);
  auto fetches = std::make_shared<Plan>(*keeps);
  fetches->config.overlap.keep_remote_kv = false;
  testing::expect_same_bits(step(keeps, options, inputs, {.num_steps = 3}), step(fetches, options, inputs));
}

TEST_P(DeviceMovement, CapturedStepsReplay) {
  if (!GetParam().on_device) GTEST_SKIP() << "this transport waits on the host";
  if (testing::must_keep_step(2)) GTEST_SKIP() << "hosts cannot keep graphs in step: needs a GPU for each rank";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const StepOptions options = deterministic_options();
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = testing::random_plan(mask, config_of(2, options.heads, Movement::kQo, 2), 3, 7);
  testing::expect_same_bits(step(plan, options, inputs, {.num_steps = 4, .as_graph = true}),
                            step(plan, options, inputs));
}

TEST_P(DeviceMovement, MovesTheBytesOfThePlan) {
  if (!GetParam().on_device) GTEST_SKIP() << "this transport's counters include what the test itself moves";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = {8, 4, 128, 128, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = testing::random_plan(mask, config_of(2, options.heads, Movement::kQo, 2), 3, 9);
  std::atomic<int64_t> bytes = 0;
  testing::run_device_ranks(2, GetParam().make, [&](DeviceCommunicator& comm) {
    const Sm90Backend backend;
    DistAttention attention(plan, comm, backend);
    StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
    comm.reset_counters();
    testing::device_rank_step(options, {}, inputs, comm, attention, results);
    bytes += comm.counters().bytes_received;
  });
  const GridTraffic expected = movement_traffic(*plan, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, false});
  EXPECT_EQ(bytes, expected.forward_bytes + expected.backward_bytes);
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceMovement, ::testing::ValuesIn(testing::transports()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });
INSTANTIATE_TEST_SUITE_P(Nccl, DeviceMovement, ::testing::Values(testing::nccl()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(DeviceMovementOptions, RefuseWhatProgramsCannotDo) {
  if (!testing::have_hopper()) GTEST_SKIP() << "needs a Hopper GPU";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const HeadConfig heads = {4, 4, 128, 128, DType::kBFloat16};
  const auto plan = testing::plan_of(mask, config_of(1, heads, Movement::kQo, 1));
  const Sm90Backend backend;
  testing::run_device_ranks(1, testing::make_blocking, [&](DeviceCommunicator& comm) {
    EXPECT_THAT(message_of<NotAvailable>(
                    [&] { DistAttention(plan, comm, backend, {.forward = DeviceOverlap::kSingleLaunch}); }),
                HasSubstr("single_launch is for plans that move K/V alone (got movement qo)"));
  });
}

}  // namespace
}  // namespace tangram
