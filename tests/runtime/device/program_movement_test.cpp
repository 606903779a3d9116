// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which queries move by the runner of streams, over host memory: results against one rank and against the
// runner of the host, kept rows, bytes, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "runtime/device/program_step.hpp"
#include "runtime/movement_cases.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::config_of;
using testing::DenseBackend;
using ::testing::HasSubstr;
using testing::kSeqlen;
using testing::NamedMask;
using testing::plan_of;
using testing::program_step;
using testing::ProgramRank;
using testing::random_plan;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

#if defined(__SANITIZE_THREAD__)
constexpr int kCpSizes[] = {2, 3};
#else
constexpr int kCpSizes[] = {1, 2, 3, 4};
#endif

/// MHA, GQA and MQA; rows of a head are multiples of 16 bytes, as kernels want them. One float a head is not for every
/// number of groups.
HeadConfig heads_of(int variant, DType dtype = DType::kFloat32) {
  return {8, variant == 0 ? 4 : variant == 1 ? 2 : 1, 8, 16, dtype};
}

StepResults step_of_program(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& inputs) {
  // Where K/V alone move, others run the plan.
  if (plan->movement() == nullptr) return testing::distributed_step(plan, options, inputs, DenseBackend());
  return program_step(plan, options, inputs, DenseBackend());
}

class ProgramMovementMasks : public ::testing::TestWithParam<NamedMask> {};

TEST_P(ProgramMovementMasks, DistributedEqualsSingleRank) {
  testing::expect_movement_close(GetParam(), kCpSizes, [](int variant) { return heads_of(variant); }, step_of_program);
}

INSTANTIATE_TEST_SUITE_P(Dist, ProgramMovementMasks, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(ProgramMovement, HeadGroupsSeeDifferentCells) {
  testing::expect_head_groups_close(kCpSizes, {8, 4, 8, 8, DType::kFloat32}, step_of_program);
}

// With two ranks every row has one part of another rank at most, so that parts are joined in the same order.
TEST(ProgramMovement, HasTheBitsOfTheHostsRunner) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType result_dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int groups : {1, 2}) {
        SCOPED_TRACE(::testing::Message()
                     << to_string(reduce_dtype) << ", " << to_string(result_dtype) << ", " << groups << " groups");
        StepOptions options;
        options.heads = heads_of(1, DType::kBFloat16);
        options.result_dtype = result_dtype;
        options.seqlen_sink = groups;
        options.sink_layout = groups == 1 ? SinkLayout::kSsh : SinkLayout::kSh;
        const StepInputs inputs = testing::make_inputs(mask, options);
        DistAttnConfig config = config_of(2, options.heads, groups);
        config.reduce_dtype = reduce_dtype;
        const auto plan = random_plan(mask, config, 4, 3);
        const StepResults host = testing::distributed_step(plan, options, inputs, backend);
        const StepResults program = program_step(plan, options, inputs, backend);
        testing::expect_same_bits(program, host);
        EXPECT_EQ(program.max_logits, host.max_logits);
        EXPECT_EQ(program.dsink, host.dsink);
      }
    }
  }
}

TEST(ProgramMovement, StepsOverAndOverHaveTheSameBits) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1, DType::kBFloat16);
  options.result_dtype = DType::kBFloat16;
  options.seqlen_sink = 1;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = random_plan(mask, config_of(4, options.heads, 2), 4, 3);
  const StepResults first = program_step(plan, options, inputs, backend);
  for (int run = 0; run < 3; ++run) {
    const StepResults again = program_step(plan, options, inputs, backend, 3);
    testing::expect_same_bits(again, first);
    EXPECT_EQ(again.max_logits, first.max_logits);
    EXPECT_EQ(again.dsink, first.dsink);
  }
}

TEST(ProgramMovement, KeptRowsGiveTheSameResults) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  for (const int groups : {1, 2}) {
    StepOptions options;
    options.heads = heads_of(1);
    const StepInputs inputs = testing::make_inputs(mask, options);
    DistAttnConfig config = config_of(4, options.heads, groups);
    config.overlap.keep_remote_kv = true;
    const auto plan = random_plan(mask, config, 3, 2);
    const StepResults kept = program_step(plan, options, inputs, backend, 3);
    options.use_kept = false;
    testing::expect_same_bits(kept, program_step(plan, options, inputs, backend, 3));
  }
}

TEST(ProgramMovement, CrossAttentionAndOptions) {
  const Mask mask = causal_mask(120, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1);
  options.attn.softcap = 3;
  options.attn.softmax_scale = 0.7f;
  options.seqlen_sink = 2;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  const DistAttnConfig config = config_of(4, options.heads, 2);
  for (const auto& plan : {plan_of(mask, config), random_plan(mask, config, 3, 1)}) {
    testing::expect_close(program_step(plan, options, inputs, backend), expected, testing::kFloat32Tolerance);
  }
}

TEST(ProgramMovement, HalfPrecisionGradientsMoveInReduceDtype) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1, DType::kBFloat16);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  DistAttnConfig config = config_of(4, options.heads, 2);
  config.reduce_dtype = DType::kBFloat16;
  // bfloat16 keeps 8 bits; parts are rounded once, sums are float32.
  testing::expect_close(program_step(random_plan(mask, config, 4, 5), options, inputs, backend), expected, 1e-2);
}

TEST(ProgramMovement, MovesTheBytesOfThePlan) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  for (const int cp_size : {2, 4}) {
    for (const int groups : {1, 2}) {
      for (const bool keep : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "cp_size " << cp_size << ", groups " << groups << ", keep " << keep);
        StepOptions options;
        options.heads = heads_of(1, DType::kBFloat16);  // one float of four heads: 16 bytes
        options.result_dtype = DType::kBFloat16;
        const StepInputs inputs = testing::make_inputs(mask, options);
        DistAttnConfig config = config_of(cp_size, options.heads, groups);
        config.overlap.keep_remote_kv = keep;
        const auto plan = random_plan(mask, config, 3, 9);
        std::mutex mutex;
        int64_t bytes[] = {0, 0};
        program_step(plan, options, inputs, backend, 1, [&](Communicator& comm, AttnPass pass) {
          const std::lock_guard lock(mutex);
          bytes[static_cast<int>(pass)] += comm.counters().bytes_received;
        });
        const GridTraffic expected =
            movement_traffic(*plan, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, true});
        EXPECT_EQ(bytes[0], expected.forward_bytes);
        EXPECT_EQ(bytes[1], expected.backward_bytes);
      }
    }
  }
}

TEST(ProgramMovement, RefusesWhatCannotMove) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1, DType::kBFloat16);
  const auto plan = plan_of(mask, config_of(2, options.heads));
  const StepInputs inputs = testing::make_inputs(mask, options);
  run_local_ranks(2, [&](Communicator& comm) {
    const ProgramRank rank(plan, comm, backend, {});
    StepResults r = testing::make_results(kSeqlen / 2, kSeqlen / 2, options);
    const Range half = {0, kSeqlen / 2};
    std::string message;
    try {
      rank.attention->check(DistBackwardArgs{slice_rows(inputs.q.view(), half), slice_rows(inputs.k.view(), half),
                                             slice_rows(inputs.v.view(), half), r.out, r.lse.data<float>(), r.out, r.dq,
                                             r.dk, r.dv});
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("dout must be bfloat16, in which it moves with its queries (got float32)"));
  });
}

}  // namespace
}  // namespace tangram
