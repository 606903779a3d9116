// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that make different calls with plans that all of them have agreed on before: nothing of that shows in the rows
// that travel, and wrong numbers came out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/dense_backend.hpp"
#include "runtime/strategy_cases.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using ::testing::HasSubstr;

using testing::make_inputs;
using testing::make_results;
using testing::plan_of;
using testing::rank_step;
using testing::StepInputs;
using testing::StepOptions;

constexpr int kNumRanks = 2;

/// All queries see all keys, but the last one not the first key: whatever travels for one of the two masks does so for
/// the other, wherever rows lie.
Mask nearly_full_mask() {
  const AttnSlice all_but_last =
      AttnSlice::from_type(MaskType::kFull, {0, testing::kSeqlen - 1}, {0, testing::kSeqlen});
  const AttnSlice last =
      AttnSlice::from_type(MaskType::kFull, {testing::kSeqlen - 1, testing::kSeqlen}, {1, testing::kSeqlen});
  return Mask(testing::kSeqlen, testing::kSeqlen, {all_but_last, last});
}

std::vector<Strategy> strategies() {
  std::vector<Strategy> all{Strategy::kTangram};
  all.insert(all.end(), std::begin(testing::kStrategies), std::end(testing::kStrategies));
  return all;
}

class CallFactsTest : public ::testing::TestWithParam<Strategy> {
 protected:
  StepOptions options() const {
    StepOptions options;
    options.heads = testing::heads_of(kNumRanks, 1, 8, 8);
    return options;
  }
  std::shared_ptr<const Plan> plan(const Mask& mask) const {
    return plan_of(mask, options().heads, kNumRanks, {GetParam(), 0, 0, {}});
  }

  /// Both ranks know `attention`; rank 1 makes a step otherwise. All must say so, and stay in step.
  template <class Step>
  void expect_refused(const std::string& text, Step step) const {
    const auto full = plan(full_mask(testing::kSeqlen, testing::kSeqlen));
    const DenseBackend backend;
    run_local_ranks(
        kNumRanks,
        [&](Communicator& comm) {
          DistAttention attention(full, comm, backend);
          try {
            step(comm, attention);
            ADD_FAILURE() << "rank " << comm.rank() << " was not told";
          } catch (const InvalidArgument& error) {
            EXPECT_THAT(error.what(), HasSubstr(text)) << "rank " << comm.rank();
          }
          comm.barrier("still usable");
        },
        20);
  }

  /// Of rank 1, spoiled.
  void expect_options_refused(const std::string& text, const std::function<void(StepOptions&)>& spoil) const {
    expect_refused(text, [&](Communicator& comm, DistAttention& attention) {
      StepOptions own = options();
      if (comm.rank() == 1) spoil(own);
      const StepInputs inputs = make_inputs(full_mask(testing::kSeqlen, testing::kSeqlen), own);
      auto results = make_results(testing::kSeqlen, testing::kSeqlen, own);
      rank_step(own, inputs, comm, attention, results);
    });
  }
};

TEST_P(CallFactsTest, DifferentKnownMasksOfEqualTrafficAreNamed) {
  const auto nearly = plan(nearly_full_mask());
  const DenseBackend backend;
  expect_refused("masks differ (rank 0: ", [&](Communicator& comm, DistAttention& attention) {
    DistAttention other(nearly, comm, backend);  // both ranks know both
    const StepInputs inputs = make_inputs(full_mask(testing::kSeqlen, testing::kSeqlen), options());
    auto results = make_results(testing::kSeqlen, testing::kSeqlen, options());
    rank_step(options(), inputs, comm, comm.rank() == 0 ? attention : other, results);
  });
}

TEST_P(CallFactsTest, AKnownMaskAndANewOneAreNamed) {
  const auto nearly = plan(nearly_full_mask());
  const DenseBackend backend;
  expect_refused("masks differ (rank 0: ", [&](Communicator& comm, DistAttention& attention) {
    if (comm.rank() == 1) DistAttention(nearly, comm, backend);
    const StepInputs inputs = make_inputs(full_mask(testing::kSeqlen, testing::kSeqlen), options());
    auto results = make_results(testing::kSeqlen, testing::kSeqlen, options());
    rank_step(options(), inputs, comm, attention, results);
  });
}

TEST_P(CallFactsTest, DifferentSoftcapsAreNamed) {
  expect_options_refused("softcaps differ (rank 0: 0; rank 1: 2)", [](StepOptions& own) { own.attn.softcap = 2; });
}

TEST_P(CallFactsTest, DifferentScalesAreNamed) {
  expect_options_refused("softmax_scales differ (rank 0: 0.353553; rank 1: 0.5)",
                         [](StepOptions& own) { own.attn.softmax_scale = 0.5f; });
}

TEST_P(CallFactsTest, DifferentSinksAreNamed) {
  expect_options_refused("sinks differ (rank 0: none; rank 1: 2 for all rows)",
                         [](StepOptions& own) { own.seqlen_sink = 2; });
  expect_options_refused("sinks differ (rank 0: none; rank 1: 1 of each row)", [](StepOptions& own) {
    own.seqlen_sink = 1;
    own.sink_layout = SinkLayout::kSsh;
  });
}

TEST_P(CallFactsTest, ForwardBesideBackwardIsNamed) {
  expect_refused(
      "passes differ (rank 0: forward; rank 1: backward)", [&](Communicator& comm, DistAttention& attention) {
        const HeadConfig heads = options().heads;
        const auto tensor = [&](int64_t rows, int num_heads) {
          HostTensor made(DType::kFloat32, rows, num_heads, 8);
          made.fill(1);
          return made;
        };
        const int64_t rows = attention.q_rows();
        HostTensor q = tensor(rows, heads.num_heads_q), k = tensor(rows, heads.num_heads_kv);
        HostTensor out = tensor(rows, heads.num_heads_q), dq = tensor(rows, heads.num_heads_q);
        HostTensor dk = tensor(rows, heads.num_heads_kv), dv = tensor(rows, heads.num_heads_kv);
        HostTensor lse(DType::kFloat32, rows, heads.num_heads_q, 1);
        lse.fill(1);
        if (comm.rank() == 0) {
          attention.forward({q, k, k, out, lse.data<float>(), nullptr, {}, nullptr, {}});
        } else {
          attention.backward({q, k, k, out, lse.data<float>(), out, dq, dk, dv, nullptr, {}, {}, nullptr, {}});
        }
      });
}

// An explicit scale that is the default is the same call.
TEST_P(CallFactsTest, TheDefaultScaleMayBeWrittenOut) {
  const StepInputs inputs = make_inputs(full_mask(testing::kSeqlen, testing::kSeqlen), options());
  const auto full = plan(full_mask(testing::kSeqlen, testing::kSeqlen));
  const DenseBackend backend;
  run_local_ranks(kNumRanks, [&](Communicator& comm) {
    DistAttention attention(full, comm, backend);
    StepOptions own = options();
    if (comm.rank() == 1) own.attn.softmax_scale = 1.0f / std::sqrt(8.0f);
    auto results = make_results(testing::kSeqlen, testing::kSeqlen, own);
    EXPECT_NO_THROW(rank_step(own, inputs, comm, attention, results));
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, CallFactsTest, ::testing::ValuesIn(strategies()),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

}  // namespace
}  // namespace tangram
