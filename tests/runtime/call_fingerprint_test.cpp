// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that make different calls with plans that all of them have agreed on before: nothing of that shows in the rows
// that move, and wrong numbers came out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/dense_backend.hpp"
#include "runtime/movement_cases.hpp"
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

/// All queries see all keys, but the last one not the first key: whatever moves for one of the two masks does so for
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

class CallFingerprintTest : public ::testing::TestWithParam<Strategy> {
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

  /// Expects an error if the options of rank 1 are changed by `spoil`.
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

TEST_P(CallFingerprintTest, DifferentKnownMasksOfEqualTrafficAreNamed) {
  const auto nearly = plan(nearly_full_mask());
  const DenseBackend backend;
  expect_refused("masks differ (rank 0: ", [&](Communicator& comm, DistAttention& attention) {
    DistAttention other(nearly, comm, backend);  // both ranks know both
    const StepInputs inputs = make_inputs(full_mask(testing::kSeqlen, testing::kSeqlen), options());
    auto results = make_results(testing::kSeqlen, testing::kSeqlen, options());
    rank_step(options(), inputs, comm, comm.rank() == 0 ? attention : other, results);
  });
}

TEST_P(CallFingerprintTest, AKnownMaskAndANewOneAreNamed) {
  const auto nearly = plan(nearly_full_mask());
  const DenseBackend backend;
  expect_refused("masks differ (rank 0: ", [&](Communicator& comm, DistAttention& attention) {
    if (comm.rank() == 1) DistAttention(nearly, comm, backend);
    const StepInputs inputs = make_inputs(full_mask(testing::kSeqlen, testing::kSeqlen), options());
    auto results = make_results(testing::kSeqlen, testing::kSeqlen, options());
    rank_step(options(), inputs, comm, attention, results);
  });
}

TEST_P(CallFingerprintTest, DifferentSoftcapsAreNamed) {
  expect_options_refused("softcaps differ (rank 0: 0; rank 1: 2)", [](StepOptions& own) { own.attn.softcap = 2; });
}

TEST_P(CallFingerprintTest, DifferentScalesAreNamed) {
  expect_options_refused("softmax_scales differ (rank 0: 0.353553; rank 1: 0.5)",
                         [](StepOptions& own) { own.attn.softmax_scale = 0.5f; });
}

TEST_P(CallFingerprintTest, DifferentSinksAreNamed) {
  expect_options_refused("sinks differ (rank 0: none; rank 1: 2 for all rows)",
                         [](StepOptions& own) { own.seqlen_sink = 2; });
  expect_options_refused("sinks differ (rank 0: none; rank 1: 1 of each row)", [](StepOptions& own) {
    own.seqlen_sink = 1;
    own.sink_layout = SinkLayout::kSsh;
  });
}

TEST_P(CallFingerprintTest, ForwardBesideBackwardIsNamed) {
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
TEST_P(CallFingerprintTest, TheDefaultScaleMayBeWrittenOut) {
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

// ---- Dtypes of results and of dout, which count where they move.

/// float32 tensors of a rank's step but for the one of this name, which is bfloat16 as the heads are.
struct TypedStep {
  TypedStep(const DistAttention& attention, const std::string& other) {
    const HeadConfig& heads = attention.plan().config.heads;
    const auto tensor = [&](const char* name, int64_t rows, int num_heads) {
      const bool is_input = name[0] == '\0' || name == other;
      HostTensor made(is_input ? DType::kBFloat16 : DType::kFloat32, rows, num_heads, heads.head_dim);
      made.fill(1);
      return made;
    };
    const int64_t q_rows = attention.q_rows(), k_rows = attention.k_rows();
    q = tensor("", q_rows, heads.num_heads_q);
    k = tensor("", k_rows, heads.num_heads_kv);
    out = tensor("out", q_rows, heads.num_heads_q);
    dout = tensor("dout", q_rows, heads.num_heads_q);
    dq = tensor("dq", q_rows, heads.num_heads_q);
    dk = tensor("dk", k_rows, heads.num_heads_kv);
    dv = tensor("dv", k_rows, heads.num_heads_kv);
    lse = HostTensor(DType::kFloat32, q_rows, heads.num_heads_q, 1);
    lse.fill(1);
  }
  void run(DistAttention& attention, bool backward) {
    if (backward) {
      attention.backward({q, k, k, out, lse.data<float>(), dout, dq, dk, dv, nullptr, {}, {}, nullptr, {}});
    } else {
      attention.forward({q, k, k, out, lse.data<float>(), nullptr, {}, nullptr, {}});
    }
  }

  HostTensor q, k, out, dout, dq, dk, dv, lse;
};

/// A pass in which `name` is of another dtype on rank 1: refused by both ranks before a row moves, or by none.
void expect_dtypes(const std::shared_ptr<const Plan>& plan, const std::string& name, bool backward, bool is_refused) {
  SCOPED_TRACE(::testing::Message() << name << (backward ? " backward" : " forward"));
  const DenseBackend backend;
  run_local_ranks(
      plan->cp_size(),
      [&](Communicator& comm) {
        DistAttention attention(plan, comm, backend);
        TypedStep step(attention, comm.rank() == 1 ? name : "none");
        comm.reset_counters();
        std::string message;
        try {
          step.run(attention, backward);
        } catch (const InvalidArgument& error) {
          message = error.what();
        }
        EXPECT_EQ(!message.empty(), is_refused) << "rank " << comm.rank() << ": " << message;
        if (is_refused) {
          EXPECT_THAT(message, ::testing::ContainsRegex("dtypes differ \\(rank.* 0.*: .*" + name +
                                                        " float32.*; rank 1: .*" + name + " bfloat16"));
          const TrafficCounters moved = comm.counters();
          EXPECT_EQ(moved.rows_sent + moved.rows_received, 0) << "rank " << comm.rank();
          EXPECT_EQ(moved.bytes_sent + moved.bytes_received, 0) << "rank " << comm.rank();
        }
        comm.barrier("still usable");
      },
      20);
}

void expect_dtypes_of_passes(const std::shared_ptr<const Plan>& plan, const std::vector<std::string>& move_forward,
                             const std::vector<std::string>& move_backward) {
  const auto has = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  expect_dtypes(plan, "out", false, has(move_forward, "out"));
  for (const char* name : {"out", "dout", "dq", "dk", "dv"}) {
    expect_dtypes(plan, name, true, has(move_backward, name));
  }
}

HeadConfig bfloat16_heads(int num_heads_kv) { return {4, num_heads_kv, 8, 8, DType::kBFloat16}; }

TEST_P(CallFingerprintTest, DTypesThatMoveAreNamedBeforeARowMoves) {
  const auto full =
      plan_of(full_mask(testing::kSeqlen, testing::kSeqlen), bfloat16_heads(4), kNumRanks, {GetParam(), 0, 0, {}});
  if (full->ulysses_degree() > 1) {
    expect_dtypes_of_passes(full, {"out"}, {"out", "dout", "dq", "dk", "dv"});
  } else {
    expect_dtypes_of_passes(full, {}, {});
  }
}

TEST(CallFingerprint, GradientsOfSharedHeadsMoveInTheReduceDType) {
  const Mask mask = full_mask(testing::kSeqlen, testing::kSeqlen);
  const auto plan = plan_of(mask, bfloat16_heads(1), kNumRanks, {Strategy::kUlysses, 0, 0, {}});
  expect_dtypes_of_passes(plan, {"out"}, {"out", "dout", "dq"});
}

TEST(CallFingerprint, DoutMovesWithQueries) {
  const Mask mask = causal_mask(testing::kSeqlen, testing::kSeqlen);
  const auto plan = testing::random_plan(mask, testing::config_of(3, bfloat16_heads(2)), 2, 1);
  expect_dtypes_of_passes(plan, {}, {"dout"});
}

INSTANTIATE_TEST_SUITE_P(Strategies, CallFingerprintTest, ::testing::ValuesIn(strategies()),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

}  // namespace
}  // namespace tangram
