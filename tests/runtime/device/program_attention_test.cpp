// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs of the strategies by the runner of streams, over host memory: results against one rank and against the
// runner of the host, bytes against the closed forms, and what is refused.
#include "runtime/device/program_attention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/device/program_step.hpp"
#include "runtime/strategy_cases.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using ::testing::HasSubstr;
using testing::kSeqlen;
using testing::kStrategies;
using testing::NamedMask;
using testing::plan_of;
using testing::program_step;
using testing::ProgramRank;
using testing::same_bits;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

#if defined(__SANITIZE_THREAD__)
constexpr int kCpSizes[] = {2, 3};
#else
constexpr int kCpSizes[] = {1, 2, 4};  // 3: see MovesTheBytesOfTheClosedForms, 8: EveryShapeOfTheGridOverAndOver
#endif

/// Rows of a head are multiples of 16 bytes, as kernels want them.
HeadConfig heads_of(int cp_size, int variant, DType dtype = DType::kFloat32) {
  return testing::heads_of(cp_size, variant, 8, 8, dtype);
}

StepResults step_of_program(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& inputs) {
  return program_step(plan, options, inputs, DenseBackend());
}

class ProgramMasks : public ::testing::TestWithParam<NamedMask> {};

TEST_P(ProgramMasks, DistributedEqualsSingleRank) {
  testing::expect_family_close(GetParam(), kCpSizes, 8, 8, step_of_program);
}

INSTANTIATE_TEST_SUITE_P(Dist, ProgramMasks, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// The programs of both targets make the same calls and add in the same order: not a bit may differ.
TEST(ProgramAttention, HasTheBitsOfTheHostsRunner) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  support::Sample sample(1);
  for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int variant = 0; variant < 3; ++variant) {
      StepOptions options;
      options.heads = heads_of(4, variant, DType::kBFloat16);
      options.result_dtype = variant == 1 ? DType::kFloat32 : DType::kBFloat16;
      if (variant > 0) options.grad_dtype = variant == 1 ? DType::kBFloat16 : DType::kFloat32;
      const StepInputs inputs = testing::make_inputs(mask, options);
      for (const Strategy strategy : kStrategies) {
        if (!sample.takes_next()) continue;
        SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", variant " << variant);
        const auto plan = plan_of(mask, options.heads, 4, {strategy, 0, 0, {}}, reduce_dtype);
        const StepResults host = testing::distributed_step(plan, options, inputs, backend);
        const StepResults program = program_step(plan, options, inputs, backend);
        EXPECT_TRUE(same_bits(program.out, host.out));
        EXPECT_TRUE(same_bits(program.lse, host.lse));
        EXPECT_TRUE(same_bits(program.dq, host.dq));
        EXPECT_TRUE(same_bits(program.dk, host.dk));
        EXPECT_TRUE(same_bits(program.dv, host.dv));
      }
    }
  }
}

// Blocks that land in memory of earlier ones, which is poison in between, pass after pass.
TEST(ProgramAttention, RingsThatReuseMemoryHaveTheSameBits) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  support::Sample sample(5);
  for (const auto& [cp_size, strategy] : {std::pair<int, StrategyConfig>(2, {Strategy::kRing, 0, 0, {}}),
                                          {4, {Strategy::kRing, 0, 0, {}}},
                                          {6, {Strategy::kRing, 0, 0, {}}},
                                          {6, {Strategy::kLoongTrain, 1, 2, {}}},
                                          {6, {Strategy::kLoongTrain, 1, 3, {}}},
                                          {8, {Strategy::kUsp, 2, 0, {}}},
                                          {6, {Strategy::kHybridCp, 0, 0, {}, 16}}}) {
    for (const int ring_buffer_steps : {0, 1, 2}) {
      for (const bool use_kept : {false, true}) {
        for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
          if (!sample.takes_next()) continue;
          StepOptions options;
          options.heads = heads_of(cp_size, 1, DType::kBFloat16);
          options.result_dtype = DType::kBFloat16;
          options.use_kept = use_kept;
          SCOPED_TRACE(::testing::Message() << describe(strategy) << " on " << cp_size << ", " << ring_buffer_steps
                                            << " steps apart, kept " << use_kept);
          const StepInputs inputs = testing::make_inputs(mask, options);
          const auto plan = plan_of(mask, options.heads, cp_size, strategy, reduce_dtype);
          ProgramTarget target;
          target.ring_buffer_steps = ring_buffer_steps;
          testing::expect_same_bits(program_step(plan, options, inputs, backend, 3, nullptr, target),
                                    program_step(plan, options, inputs, backend));
        }
      }
    }
  }
}

TEST(ProgramAttention, EveryShapeOfTheGridOverAndOver) {
  testing::expect_grid_shapes_close(8, 8, [](const auto& plan, const StepOptions& options, const StepInputs& inputs) {
    return program_step(plan, options, inputs, DenseBackend(), 3);
  });
}

TEST(ProgramAttention, CrossAttentionAndGivenDispatches) {
  testing::expect_cross_attention_close(8, 8, step_of_program);
}

TEST(ProgramAttention, HcmsHasTheBitsOfUlysses) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {16, 8, 8, 8, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto step = [&](const StrategyConfig& strategy) {
    return program_step(plan_of(mask, options.heads, 2, strategy), options, inputs, backend);
  };
  const StepResults ulysses = step({Strategy::kUlysses, 0, 0, {}});
  for (const std::vector<int>& chunks : {std::vector<int>{4}, {2, 2}, {1, 2, 1}, {3, 1}}) {
    const StepResults hcms = step({Strategy::kHcms, 0, 0, chunks});
    testing::expect_same_bits(hcms, ulysses);
  }
}

TEST(ProgramAttention, SinksOfSingleRowsMoveWithTheHeads) {
  constexpr int kSizes[] = {2, 4};
  testing::expect_row_sinks_close(kSizes, 8, 8, step_of_program);
}

TEST(ProgramAttention, MovesTheBytesOfTheClosedForms) {
  const DenseBackend backend;
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  support::Sample sample(5);
  for (const int cp_size : {2, 3}) {
    for (int variant = 0; variant < 3; ++variant) {
      for (const auto& [use_kept, row_sinks] : {std::pair(false, 0), {true, 0}, {false, 2}, {true, 2}}) {
        StepOptions options;
        options.heads = heads_of(cp_size, variant, DType::kBFloat16);
        options.result_dtype = DType::kBFloat16;
        options.use_kept = use_kept;
        options.seqlen_sink = row_sinks;
        options.sink_layout = SinkLayout::kSsh;
        const StepInputs inputs = testing::make_inputs(mask, options);
        for (const Strategy strategy : kStrategies) {
          if (!sample.takes_next()) continue;
          SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size << ", variant " << variant
                                            << ", kept " << use_kept << ", sinks " << row_sinks);
          const auto plan = plan_of(mask, options.heads, cp_size, {strategy, 0, 0, {}});
          std::mutex mutex;
          int64_t bytes[] = {0, 0};
          program_step(plan, options, inputs, backend, 1, [&](Communicator& comm, AttnPass pass) {
            const std::lock_guard lock(mutex);
            bytes[static_cast<int>(pass)] += comm.counters().bytes_received;
          });
          const GridTraffic expected =
              grid_traffic(*plan, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, use_kept, row_sinks});
          EXPECT_EQ(bytes[0], expected.forward_bytes);
          EXPECT_EQ(bytes[1], expected.backward_bytes);
        }
      }
    }
  }
}

TEST(ProgramAttention, RefusesWhatCannotMove) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  const auto plan = plan_of(mask, heads_of(2, 0, DType::kBFloat16), 2, {Strategy::kUlysses, 0, 0, {}});
  StepOptions options;
  options.heads = plan->config.heads;
  options.result_dtype = DType::kBFloat16;
  options.seqlen_sink = 1;
  options.sink_layout = SinkLayout::kSsh;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto message_of = [&](const StepOptions& how, DType prepared_for) {
    std::string message;
    run_local_ranks(2, [&](Communicator& comm) {
      ProgramRank rank(plan, comm, backend, {.result_dtype = prepared_for});
      StepResults local = make_results(kSeqlen / 2, kSeqlen / 2, how);
      const ConstTensorView q = inputs.q.view(), k = inputs.k.view(), v = inputs.v.view();
      const Range half = {0, kSeqlen / 2};
      try {
        rank.attention->check(DistForwardArgs{slice_rows(q, half),
                                              slice_rows(k, half),
                                              slice_rows(v, half),
                                              local.out,
                                              local.lse.data<float>(),
                                              nullptr,
                                              {inputs.sink.data(), how.seqlen_sink, how.sink_layout}});
      } catch (const InvalidArgument& error) {
        if (comm.rank() == 0) message = error.what();
      }
    });
    return message;
  };
  EXPECT_THAT(message_of(options, DType::kBFloat16),
              HasSubstr("sinks of single rows must be as many as prepared for, since they move with heads "
                        "(got 1 and DistAttentionOptions::row_sinks=0)"));
  options.sink_layout = SinkLayout::kSh;
  EXPECT_EQ(message_of(options, DType::kBFloat16), "");
  EXPECT_THAT(message_of(options, DType::kFloat32), HasSubstr("out must be float32, in which it moves"));
}

TEST(ProgramAttention, RanksAgreeOnWhatMovesBesideHeads) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const auto messages_of = [&](Strategy strategy, int64_t row_sinks, DType result_dtype,
                               DType grad_dtype = DType::kBFloat16) {  // of rank 1
    const auto plan = plan_of(mask, heads_of(2, 0, DType::kBFloat16), 2, {strategy, 0, 0, {}});
    std::vector<std::string> messages(2);
    run_local_ranks(2, [&](Communicator& comm) {
      const bool is_other = comm.rank() == 1;
      try {
        agree_on_heads(comm, *plan, is_other ? row_sinks : 1, is_other ? result_dtype : DType::kBFloat16,
                       is_other ? grad_dtype : DType::kBFloat16);
      } catch (const InvalidArgument& error) {
        messages[static_cast<size_t>(comm.rank())] = error.what();
      }
      comm.barrier("works on");
    });
    return messages;
  };
  const auto refused =
      ::testing::Each(HasSubstr("row_sinks, result_dtype and grad_dtype: must be equal on every rank"));
  EXPECT_THAT(messages_of(Strategy::kUlysses, 2, DType::kBFloat16), refused);
  EXPECT_THAT(messages_of(Strategy::kUlysses, 1, DType::kFloat32), refused);
  EXPECT_THAT(messages_of(Strategy::kUlysses, 1, DType::kBFloat16, DType::kFloat32), refused);
  EXPECT_THAT(messages_of(Strategy::kUlysses, 1, DType::kBFloat16), ::testing::Each(""));
  EXPECT_THAT(messages_of(Strategy::kRing, 2, DType::kFloat32), ::testing::Each("")) << "nothing moves with heads";
}

}  // namespace
}  // namespace tangram
