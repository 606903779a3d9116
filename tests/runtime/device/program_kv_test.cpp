// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which K/V alone move by the runner of streams, over host memory: one call a stage, one call that waits, own
// keys that are read where they lie, gradients that are stored at their owners.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "runtime/delegating_backend.hpp"
#include "runtime/device/program_step.hpp"
#include "runtime/device/stream_backend.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/staged_plan.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using testing::heads_of;
using testing::HostMemoryDevice;
using testing::kSeqlen;
using testing::NamedMask;
using testing::plan_of;
using testing::program_step;
using testing::ProgramRank;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;
using testing::StreamBackend;

// Before anything asks Env: programs are verified, memory of passes is NaN before it is written.
[[maybe_unused]] const int kCheckPrograms = setenv("TANGRAM_SANITY_CHECK", "1", 1);

// Partial results are rounded to float32 once a stage, and sums once per contribution.
constexpr double kTolerance = 2e-6;
constexpr KeyCalls kCalls[] = {KeyCalls::kByStage, KeyCalls::kOnce, KeyCalls::kAsTheyCome};

ProgramTarget target_of(KeyCalls forward, KeyCalls backward, bool reads_local_kv, bool stores_at_owners) {
  ProgramTarget target;
  target.forward_calls = forward;
  target.backward_calls = backward;
  if (reads_local_kv) target.local_kv_halo = StreamBackend::kBorder;
  target.stores_at_owners = stores_at_owners;
  return target;
}

class ProgramKvMasks : public ::testing::TestWithParam<NamedMask> {};

TEST_P(ProgramKvMasks, EveryWayOfCallingEqualsASingleRank) {
  const Mask& mask = GetParam().mask;
  const StreamBackend backend;
  support::Sample sample(4, testing::number_of(GetParam()));
  int variant = 0;
  for (const int cp_size : {1, 2, 3, 4}) {
    for (const KeyCalls forward : kCalls) {
      for (const KeyCalls backward : kCalls) {
        ++variant;
        if (!sample.takes_next()) continue;
        const bool keep = variant % 3 == 0;
        StepOptions options;
        options.heads = heads_of(4, variant % 2 == 0 ? 2 : 1, DType::kFloat32, 16);
        options.seqlen_sink = variant % 2;
        options.use_kept = keep;
        SCOPED_TRACE(::testing::Message() << "cp_size " << cp_size << ", variant " << variant);
        const StepInputs inputs = testing::make_inputs(mask, options);
        const auto plan = plan_of(mask, options.heads, cp_size, 1 + variant % 3, 2 + variant % 2, keep);
        options.use_kept = can_keep(*plan);
        const ProgramTarget target = target_of(forward, backward, variant % 4 < 2, variant % 5 < 3);
        // The second step finds what the first left in memory.
        testing::expect_close(program_step(plan, options, inputs, backend, 2, nullptr, target),
                              testing::single_step(mask, options, inputs, testing::DenseBackend()), kTolerance);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dist, ProgramKvMasks, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// By stage, streams make the calls of the host: not a bit of what no transport adds up may differ.
TEST(ProgramKv, HasTheBitsOfTheHostsRunner) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, kSeqlen}, true);
  const testing::DenseBackend backend;
  for (const bool keep : {false, true}) {
    StepOptions options;
    options.heads = heads_of(4, 2, DType::kBFloat16);
    options.result_dtype = DType::kBFloat16;
    options.use_kept = keep;
    const StepInputs inputs = testing::make_inputs(mask, options);
    const auto plan = plan_of(mask, options.heads, 3, 2, 2, keep);
    const StepResults host = testing::distributed_step(plan, options, inputs, backend);
    const StepResults stream = program_step(plan, options, inputs, backend);
    EXPECT_TRUE(testing::same_bits(stream.out, host.out));
    EXPECT_TRUE(testing::same_bits(stream.lse, host.lse));
    EXPECT_TRUE(testing::same_bits(stream.dq, host.dq));
    EXPECT_TRUE(testing::same_bits(stream.dk, host.dk));
    EXPECT_TRUE(testing::same_bits(stream.dv, host.dv));
  }
}

TEST(ProgramKv, ResultsOf16BitsAndGradientsThatMoveInThem) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const StreamBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 2, DType::kBFloat16);
  options.use_kept = false;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, testing::DenseBackend());
  options.result_dtype = DType::kBFloat16;
  for (const KeyCalls calls : kCalls) {
    const auto plan = plan_of(mask, options.heads, 4, 2, 2, false, DType::kBFloat16);
    const StepResults actual =
        program_step(plan, options, inputs, backend, 1, nullptr, target_of(calls, calls, true, true));
    // Half a unit in the last place of bfloat16 of each rounding: of out; of dk and dv one a rank, and of their sum.
    EXPECT_LE(testing::relative_error(actual.out, expected.out), 0x1p-8);
    EXPECT_LE(testing::relative_error(actual.dk, expected.dk), 0x1p-6);
    EXPECT_LE(testing::relative_error(actual.dv, expected.dv), 0x1p-6);
  }
}

/// Runs one forward pass on two ranks with `spoil`ed operands; returns what each rank throws, and looks at its device.
std::vector<std::string> forward_messages(const AttnBackend& backend,
                                          const std::function<void(int, StepInputs&)>& spoil,
                                          const std::function<void(HostMemoryDevice&)>& inspect = nullptr) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const auto plan = plan_of(mask, options.heads, 2, 1, 1);
  std::vector<std::string> messages(2);
  run_local_ranks(2, [&](Communicator& comm) {
    StepInputs inputs = testing::make_inputs(mask, options);
    spoil(comm.rank(), inputs);
    ProgramRank rank(plan, comm, backend, {.result_dtype = DType::kFloat32});
    StepResults local = testing::make_results(kSeqlen / 2, kSeqlen / 2, options);
    const Range half = {0, kSeqlen / 2};
    DistForwardArgs args{slice_rows(ConstTensorView(inputs.q), half), slice_rows(ConstTensorView(inputs.k), half),
                         slice_rows(ConstTensorView(inputs.v), half), local.out, local.lse.data<float>()};
    args.workspace = rank.workspace();
    try {
      rank.attention->forward(args, nullptr);
    } catch (const InternalError& error) {
      messages[static_cast<size_t>(comm.rank())] = error.what();
    }
    if (inspect) inspect(rank.device);
    comm.barrier("passes have ended");
  });
  return messages;
}

class NanBackend final : public testing::DelegatingBackend {
 public:
  NanBackend() : DelegatingBackend("nan") {}
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const override {
    DelegatingBackend::forward(slot, args, stream);
    *static_cast<float*>(args.out.data) = std::nanf("");
  }
};

TEST(ProgramKv, NanThatAPassMakesIsFoundUnderTheSanityCheck) {
  const auto nothing = [](int, StepInputs&) {};
  EXPECT_THAT(forward_messages(NanBackend(), nothing), ::testing::Each(::testing::Not("")));
  EXPECT_THAT(forward_messages(StreamBackend(), nothing), ::testing::Each(""));
}

TEST(ProgramKv, IncomingNanIsNoFault) {
  // NaN in a key of rank 0, whose queries see it; rank 1 receives it.
  const auto messages = forward_messages(StreamBackend(), [](int rank, StepInputs& inputs) {
    if (rank == 0) inputs.k.set(0, 0, 0, std::nanf(""));
  });
  EXPECT_THAT(messages, ::testing::Each(""));
}

TEST(ProgramKv, APassLeavesNaNWhereRowsLanded) {
  forward_messages(
      StreamBackend(), [](int, StepInputs&) {},
      [](HostMemoryDevice& device) {
        ASSERT_EQ(device.passes().size(), 2u) << "forward and backward";
        const ConstTensorView recv_buffers = device.passes()[0]->recv_buffers(0, 0);
        ASSERT_GT(recv_buffers.rows, 0);
        for (int64_t i = 0; i < recv_buffers.rows * recv_buffers.row_stride; ++i) {
          ASSERT_TRUE(std::isnan(static_cast<const float*>(recv_buffers.data)[i])) << i;
        }
      });
}

TEST(ProgramKv, RanksThatMakeOtherCallsAreToldBeforeARowMovesUnderTheSanityCheck) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const auto plan = plan_of(mask, options.heads, 2, 1, 1);
  const StreamBackend backend;
  const auto messages_of = [&](float softcap_of_rank_1) {
    std::vector<std::string> messages(2);
    run_local_ranks(2, [&](Communicator& comm) {
      const StepInputs inputs = testing::make_inputs(mask, options);
      ProgramRank rank(plan, comm, backend, {.result_dtype = DType::kFloat32});
      StepResults local = testing::make_results(kSeqlen / 2, kSeqlen / 2, options);
      const Range half = {0, kSeqlen / 2};
      DistForwardArgs args{slice_rows(ConstTensorView(inputs.q), half), slice_rows(ConstTensorView(inputs.k), half),
                           slice_rows(ConstTensorView(inputs.v), half), local.out, local.lse.data<float>()};
      args.options.softcap = comm.rank() == 1 ? softcap_of_rank_1 : 0;
      comm.reset_counters();
      try {
        rank.attention->compare(args);
      } catch (const InvalidArgument& error) {
        messages[static_cast<size_t>(comm.rank())] = error.what();
      }
      EXPECT_EQ(comm.counters().rows_sent, 0);
      comm.barrier("calls have been compared");
    });
    return messages;
  };
  EXPECT_THAT(messages_of(30), ::testing::Each(HasSubstr("softcap")));
  EXPECT_THAT(messages_of(0), ::testing::Each(""));
}

TEST(ProgramKv, KeptRowsAreGivenToBothPassesWhereThePlanKeepsThem) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const StreamBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto message_of = [&](bool keep) {
    const auto plan = plan_of(mask, options.heads, 2, 1, 2, keep);
    StepOptions wrong = options;
    wrong.use_kept = !keep;
    std::string message;
    run_local_ranks(2, [&](Communicator& comm) {
      ProgramRank rank(plan, comm, backend, {.result_dtype = DType::kFloat32});
      StepResults local = testing::make_results(kSeqlen / 2, kSeqlen / 2, wrong);
      const Range half = {0, kSeqlen / 2};
      KeptKv kept;
      DistForwardArgs args{slice_rows(ConstTensorView(inputs.q), half), slice_rows(ConstTensorView(inputs.k), half),
                           slice_rows(ConstTensorView(inputs.v), half), local.out, local.lse.data<float>()};
      args.kept = wrong.use_kept ? &kept : nullptr;
      try {
        rank.attention->check(args);
      } catch (const InvalidArgument& error) {
        if (comm.rank() == 0) message = error.what();
      }
    });
    return message;
  };
  const auto refused = [](const char* got) {
    return HasSubstr(std::string("kept must be given where the plan keeps remote K/V, and only there (got ") + got);
  };
  EXPECT_THAT(message_of(true), refused("null"));
  EXPECT_THAT(message_of(false), refused("one"));
}

}  // namespace
}  // namespace tangram
