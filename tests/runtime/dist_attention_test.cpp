// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/dist_attention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/delegating_backend.hpp"
#include "runtime/host_steps.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/staged_plan.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using testing::heads_of;
using testing::index_of;
using testing::kFloat32Tolerance;
using testing::kSeqlen;
using testing::plan_of;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

#if defined(__SANITIZE_THREAD__)
constexpr int kSweepCpSizes[] = {2, 3};  // as kCpSizes
#else
constexpr int kSweepCpSizes[] = {1, 2, 3, 4, 6, 8};
#endif

using testing::NamedMask;

class MaskFamilies : public ::testing::TestWithParam<NamedMask> {};

TEST_P(MaskFamilies, DistributedEqualsSingleRank) {
  const Mask& mask = GetParam().mask;
  const DenseBackend backend;
  const std::pair<int, int> head_pairs[] = {{2, 2}, {4, 2}, {3, 1}};
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  support::Sample sample(5, testing::number_of(GetParam()));
  int variant = 0;
  for (const int cp_size : kSweepCpSizes) {
    for (const int stages : {1, 2, 3, 4}) {
      // Each combination of cp_size and stages meets another head layout, dtype and backward pass, so that all meet.
      const auto [num_heads_q, num_heads_kv] = head_pairs[variant % 3];
      const DType dtype = dtypes[(variant / 3 + variant) % 3];
      const int stages_bwd = 5 - stages;
      // A plan that keeps the last stage of several needs another backward stage for the rest.
      const bool keep = (variant / 4 + variant) % 2 == 1 && (stages_bwd > 1 || stages == 1);
      ++variant;
      if (!sample.takes_next()) continue;
      SCOPED_TRACE(::testing::Message() << "cp_size " << cp_size << ", stages " << stages << ", heads " << num_heads_q
                                        << "/" << num_heads_kv << ", " << to_string(dtype) << ", keep " << keep);
      StepOptions options;
      options.heads = heads_of(num_heads_q, num_heads_kv, dtype, 5);
      const StepInputs inputs = testing::make_inputs(mask, options);
      const StepResults expected = testing::single_step(mask, options, inputs, backend);
      const auto plan = plan_of(mask, options.heads, cp_size, stages, stages_bwd, keep);
      testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dist, MaskFamilies, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(DistAttention, HalfPrecisionResultsAreRoundedOnce) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    StepOptions options;
    options.heads = heads_of(2, 1, dtype);
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults exact = testing::single_step(mask, options, inputs, backend);
    options.result_dtype = dtype;
    const StepResults actual =
        testing::distributed_step(plan_of(mask, options.heads, 4, 2, 2), options, inputs, backend);
    // Half a unit in the last place of the dtype, relative to each element; dq, dk and dv inherit that of out besides.
    const double half_ulp = dtype == DType::kBFloat16 ? 1.0 / 256 : 1.0 / 2048;
    testing::expect_close(actual, exact, 1.5 * half_ulp);
  }
}

TEST(DistAttention, ReduceDtypeBoundsTheErrorOfGradients) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kBFloat16);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults exact = testing::single_step(mask, options, inputs, backend);
  const StepResults actual = testing::distributed_step(plan_of(mask, options.heads, 4, 2, 2, false, DType::kBFloat16),
                                                       options, inputs, backend);
  // Three contributions rounded to bfloat16, and their sums rounded once a stage: a few times 2^-9.
  EXPECT_LE(testing::relative_error(actual.dk, exact.dk), 4.0 / 512);
  EXPECT_GT(testing::relative_error(actual.dk, exact.dk), 1e-5) << "the reduction was not done in bfloat16";
  EXPECT_LE(testing::relative_error(actual.dv, exact.dv), 4.0 / 512);
  EXPECT_LE(testing::relative_error(actual.dq, exact.dq), kFloat32Tolerance);
}

TEST(DistAttention, SinkSoftcapAndScaleReachAllRanks) {
  const DenseBackend backend;
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, 0}, {2, 1}};
  const Mask masks[] = {causal_mask(kSeqlen, kSeqlen), block_sparse_mask(kSeqlen, kSeqlen, 40, 60, blocks)};
  for (const Mask& mask : masks) {
    for (const SinkLayout layout : {SinkLayout::kSh, SinkLayout::kSsh}) {
      StepOptions options;
      options.heads = heads_of(4, 2, DType::kFloat32);
      options.attn.softcap = 2.5f;
      options.attn.softmax_scale = 0.7f;
      options.seqlen_sink = 3;
      options.sink_layout = layout;
      const StepInputs inputs = testing::make_inputs(mask, options);
      const StepResults expected = testing::single_step(mask, options, inputs, backend);
      for (const int cp_size : {1, 3, 4}) {
        for (const bool keep : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "cp_size " << cp_size << " keep " << keep);
          const auto plan = plan_of(mask, options.heads, cp_size, 2, 2, keep);
          testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, 2e-5);
        }
      }
    }
  }
}

TEST(DistAttention, DsinkIsReducedAsAsked) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  options.seqlen_sink = 1;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const float expected = testing::single_step(mask, options, inputs, backend).dsink[0];
  const auto plan = plan_of(mask, options.heads, 4, 1, 1);
  const auto dsink_of = [&](DsinkReduce reduce) {
    options.dsink_reduce = reduce;
    std::vector<float> by_rank(4);
    run_local_ranks(4, [&](Communicator& comm) {
      DistAttention attention(plan, comm, backend);
      StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
      testing::rank_step(options, inputs, comm, attention, results);
      by_rank[static_cast<size_t>(comm.rank())] = results.dsink[0];
    });
    return by_rank;
  };
  for (const float value : dsink_of(DsinkReduce::kSum)) EXPECT_NEAR(value, expected, 1e-4);
  for (const float value : dsink_of(DsinkReduce::kAvg)) EXPECT_NEAR(value, expected / 4, 1e-4);
  const std::vector<float> own = dsink_of(DsinkReduce::kNone);
  EXPECT_NEAR(own[0] + own[1] + own[2] + own[3], expected, 1e-4);
  EXPECT_NE(own[0], own[1]);
}

TEST(DistAttention, CrossAttentionWithUnlikeLengths) {
  const DenseBackend backend;
  const std::vector<int64_t> cu_q = {0, 50, 120}, cu_k = {0, 90, 240};
  for (const Mask& mask : {full_mask(120, 240), varlen_mask(cu_q, cu_k, true)}) {
    StepOptions options;
    options.heads = heads_of(2, 1, DType::kFloat32);
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = testing::single_step(mask, options, inputs, backend);
    for (const int cp_size : {2, 3, 4}) {
      const auto plan = plan_of(mask, options.heads, cp_size, 2, 1);
      testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
    }
  }
}

TEST(DistAttention, OneDispatchServesSeveralMasks) {
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const auto first = plan_of(causal_mask(kSeqlen, kSeqlen), options.heads, 4, 2, 2);
  for (const Mask& mask : {sliding_window_mask(kSeqlen, {16, 0}), full_mask(kSeqlen, kSeqlen)}) {
    const auto plan =
        std::make_shared<const Plan>(make_plan(mask, first->config, first->q_dispatch, first->k_dispatch));
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = testing::single_step(mask, options, inputs, backend);
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
  }
}

TEST(DistAttention, ResultsAreBitwiseEqualFromRunToRun) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 2, DType::kBFloat16);
  options.attn.deterministic = true;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 8, 3, 3, true);
  const StepResults first = testing::distributed_step(plan, options, inputs, backend);
  for (int run = 0; run < 5; ++run) {
    const StepResults again = testing::distributed_step(plan, options, inputs, backend);
    for (const auto tensor : {&StepResults::out, &StepResults::dq, &StepResults::dk, &StepResults::dv}) {
      const HostTensor &a = first.*tensor, &b = again.*tensor;
      EXPECT_EQ(std::memcmp(a.data<char>(), b.data<char>(), static_cast<size_t>(a.bytes())), 0);
    }
  }
}

TEST(DistAttention, MovesAndHoldsExactlyWhatThePlanSays) {
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 1, DType::kBFloat16);
  for (const NamedMask& family : testing::mask_families()) {
    SCOPED_TRACE(family.name);
    const auto plan = plan_of(family.mask, options.heads, 4, 2, 2);
    const StepInputs inputs = testing::make_inputs(family.mask, options);
    run_local_ranks(4, [&](Communicator& comm) {
      DistAttention attention(plan, comm, backend);
      const RankPlan& rank_plan = plan->ranks()[static_cast<size_t>(comm.rank())];
      const HostTensor q(DType::kBFloat16, attention.q_rows(), 2, 8), k(DType::kBFloat16, attention.k_rows(), 1, 8);
      const_cast<HostTensor&>(q).fill(1);
      const_cast<HostTensor&>(k).fill(1);
      HostTensor out(DType::kBFloat16, attention.q_rows(), 2, 8);
      std::vector<float> lse(static_cast<size_t>(attention.q_rows() * 2));
      comm.reset_counters();
      attention.forward({q, k, k, out, lse.data(), nullptr, {}, nullptr, {}});
      EXPECT_EQ(comm.counters().rows_received, 2 * rank_plan.remote_kv_rows);
      EXPECT_EQ(comm.counters().bytes_received, 2 * rank_plan.remote_kv_rows * k.view().row_bytes());
      EXPECT_EQ(attention.memory_use().remote_kv_rows, rank_plan.remote_kv_rows);
      const int64_t kv_bytes = 2 * rank_plan.kv_rows * k.view().row_bytes();
      EXPECT_LE(attention.memory_use().buffer_bytes, kv_bytes + 2 * out.bytes());

      HostTensor dq(DType::kBFloat16, q.rows(), 2, 8), dk(DType::kBFloat16, k.rows(), 1, 8), dv = dk.clone();
      comm.reset_counters();
      attention.backward({q, k, k, out, lse.data(), q, dq, dk, dv, nullptr, {}, DsinkReduce::kSum, nullptr, {}});
      int64_t rows_owned_elsewhere = 0;
      for (const Stage& stage : rank_plan.backward) rows_owned_elsewhere += stage.exchange.rows_sent();
      EXPECT_EQ(comm.counters().rows_received, 2 * (rank_plan.remote_kv_rows + rows_owned_elsewhere));
      comm.barrier("end");
    });
  }
}

TEST(DistAttention, KeptRowsAreNotSentAgain) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 4, 2, 2, true);
  ASSERT_TRUE(plan->ranks()[0].backward.back().kept);
  std::array<std::atomic<int>, 2> num_casts{};
  std::array<std::atomic<int>, 2> first_stage{};
  for (const bool use_kept : {false, true}) {
    options.use_kept = use_kept;
    const StepResults expected = testing::single_step(mask, options, inputs, backend);
    const auto inspect = [&](Communicator& comm, const DistAttention& attention) {
      if (comm.rank() != 0) return;
      int first = -1;
      for (const TraceEvent& event : attention.trace()) {
        if (event.pass != AttnPass::kBackward) continue;
        if (event.kind == TraceKind::kPostCast) ++num_casts[use_kept];
        if (event.kind == TraceKind::kCompute && first < 0) first = event.stage;
      }
      first_stage[use_kept] = first;
    };
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend, inspect), expected,
                          kFloat32Tolerance);
  }
  EXPECT_EQ(num_casts[false], 2);
  EXPECT_EQ(num_casts[true], 1);
  EXPECT_EQ(first_stage[false], 0);
  EXPECT_EQ(first_stage[true], 2);
}

TEST(DistAttention, NextStageIsPostedBeforeAStageComputes) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const StepInputs inputs = testing::make_inputs(mask, options);
  constexpr int kStages = 3;
  const auto plan = plan_of(mask, options.heads, 4, kStages, kStages);
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int stage = 0; stage <= kStages; ++stage) {
        const size_t compute = index_of(trace, pass, TraceKind::kCompute, stage);
        if (stage < kStages) {
          const size_t post = index_of(trace, pass, TraceKind::kPostCast, stage + 1);
          EXPECT_LT(post, compute);
          EXPECT_LE(trace[post].end_s, trace[compute].begin_s);
        }
        if (stage == 0) continue;
        const size_t wait = index_of(trace, pass, TraceKind::kWaitCast, stage);
        EXPECT_LT(wait, compute);
        EXPECT_LE(trace[wait + 1].end_s, trace[compute].begin_s) << "computed before the rows were there";
        EXPECT_EQ(trace[wait + 1].kind, TraceKind::kTransferCast);
        if (pass == AttnPass::kBackward) {
          const size_t post = index_of(trace, pass, TraceKind::kPostReduce, stage);
          EXPECT_LT(compute, post);
          if (stage < kStages) {
            EXPECT_LT(post, index_of(trace, pass, TraceKind::kCompute, stage + 1));
          }
          EXPECT_LT(index_of(trace, pass, TraceKind::kCompute, kStages),
                    index_of(trace, pass, TraceKind::kWaitReduce, stage));
        }
      }
    }
    for (const TraceEvent& event : trace) EXPECT_LE(event.begin_s, event.end_s);
  });
}

/// Sleeps in every call, so that a transfer beside it has the time to end.
class SlowBackend final : public testing::DelegatingBackend {
 public:
  explicit SlowBackend(double seconds) : DelegatingBackend("slow"), seconds_(seconds) {}
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    DelegatingBackend::forward(slot, args, stream);
  }
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream) const override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    DelegatingBackend::backward(slot, args, stream);
  }

 private:
  double seconds_;
};

TEST(DistAttention, TransfersRunBesideCompute) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const SlowBackend backend(0.4);  // far above what a small transfer takes even on a busy machine
  StepOptions options;
  options.heads = heads_of(1, 1, DType::kFloat32);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 2, 2, 2);
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      const TraceEvent& transfer = trace[index_of(trace, pass, TraceKind::kTransferCast, 2)];
      const TraceEvent& compute = trace[index_of(trace, pass, TraceKind::kCompute, 1)];
      EXPECT_LT(transfer.end_s, compute.end_s) << "the rows of stage 2 came only after stage 1 had computed";
    }
    const TraceEvent& reduce = trace[index_of(trace, AttnPass::kBackward, TraceKind::kTransferReduce, 1)];
    EXPECT_LT(reduce.end_s, trace[index_of(trace, AttnPass::kBackward, TraceKind::kCompute, 2)].end_s);
  });
}

}  // namespace
}  // namespace tangram
