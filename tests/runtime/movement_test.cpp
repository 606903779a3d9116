// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which queries move too, the planner's and random ones: results against one rank, bits from run to run, order
// of transfers and computing, sinks, kept rows, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "runtime/delegating_backend.hpp"
#include "runtime/host_steps.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/movement_cases.hpp"
#include "support/message_of.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using support::message_of;
using testing::config_of;
using testing::DenseBackend;
using ::testing::HasSubstr;
using testing::index_of;
using testing::kCpSizes;
using testing::kFloat32Tolerance;
using testing::kSeqlen;
using testing::NamedMask;
using testing::plan_of;
using testing::random_plan;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

/// MHA, GQA and MQA.
HeadConfig heads_of(int variant, DType dtype = DType::kFloat32) {
  return {4, variant == 0 ? 4 : variant == 1 ? 2 : 1, 4, 3, dtype};
}

class MovementMasks : public ::testing::TestWithParam<NamedMask> {};

TEST_P(MovementMasks, DistributedEqualsSingleRank) {
  const DenseBackend backend;
  testing::expect_movement_close(
      GetParam(), kCpSizes, [](int variant) { return heads_of(variant); },
      [&](const auto& plan, const StepOptions& options, const StepInputs& inputs) {
        return testing::distributed_step(plan, options, inputs, backend);
      });
}

INSTANTIATE_TEST_SUITE_P(Dist, MovementMasks, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Movement, HeadGroupsSeeDifferentCells) {
  const DenseBackend backend;
  testing::expect_head_groups_close(kCpSizes, {8, 4, 4, 3, DType::kFloat32},
                                    [&](const auto& plan, const StepOptions& options, const StepInputs& inputs) {
                                      return testing::distributed_step(plan, options, inputs, backend);
                                    });
}

TEST(Movement, RunsHaveTheSameBits) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1, DType::kBFloat16);
  options.result_dtype = DType::kBFloat16;
  options.seqlen_sink = 1;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = random_plan(mask, config_of(4, options.heads, 2), 4, 3);
  const StepResults first = testing::distributed_step(plan, options, inputs, backend);
  for (int run = 0; run < 5; ++run) {
    const StepResults again = testing::distributed_step(plan, options, inputs, backend);
    testing::expect_same_bits(again, first);
    EXPECT_EQ(again.max_logits, first.max_logits);
    EXPECT_EQ(again.dsink, first.dsink);
  }
}

// Zigzag rows: what ends one head group and what begins the next are of one owner, and so of one segment.
TEST(Movement, SegmentsMayHoldRowsOfTwoHeadGroups) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1);
  const StepInputs inputs = testing::make_inputs(mask, options);
  DistAttnConfig config = config_of(2, options.heads, 2);
  config.dispatch.algorithm = DispatchAlgorithm::kZigzag;
  config.dispatch.chunk_size = kSeqlen / 4;
  config.overlap = {1, 1, false};
  const auto plan = plan_of(mask, config);
  const auto spans = [](const RowSegment& s) { return s.global.begin < kSeqlen && kSeqlen < s.global.end; };
  const std::vector<RowSegment>& segments = plan->movement()->forward[1].q_segments;
  EXPECT_TRUE(std::any_of(segments.begin(), segments.end(), spans));
  testing::expect_close(testing::distributed_step(plan, options, inputs, backend),
                        testing::single_step(mask, options, inputs, backend), kFloat32Tolerance);
}

TEST(Movement, HalfPrecisionGradientsMoveInReduceDtype) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1, DType::kBFloat16);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  DistAttnConfig config = config_of(4, options.heads, 2);
  config.reduce_dtype = DType::kBFloat16;
  // bfloat16 keeps 8 bits; one rounding of each part and one of the sum after each of three stages.
  testing::expect_close(testing::distributed_step(random_plan(mask, config, 4, 5), options, inputs, backend), expected,
                        4e-2);
}

// No query of others sees the last rank's keys: it fetches none, and has gradients for no other rank.
TEST(Movement, ARankThatFetchesNothingAgreesOnTheTypeOfGradients) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1, DType::kBFloat16);
  const StepInputs inputs = testing::make_inputs(mask, options);
  DistAttnConfig config = config_of(2, options.heads);
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  config.reduce_dtype = DType::kBFloat16;
  const auto plan = plan_of(mask, config);
  EXPECT_EQ(plan->movement()->backward[1].remote_q_rows, 0);
  testing::expect_close(testing::distributed_step(plan, options, inputs, backend),
                        testing::single_step(mask, options, inputs, backend), 2e-2);
}

// What one group's last row sees and what the next group's first row sees lie one behind the other in buffers, and the
// plan joins them.
TEST(Movement, SlicesThatTouchOverTheBorderOfHeadGroups) {
  const Mask mask(kSeqlen, kSeqlen, {AttnSlice{{0, kSeqlen}, {0, kSeqlen}, 0, 0}});
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1);
  options.seqlen_sink = 1;  // or there would be no gradients where a row sees one key
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  for (const int cp_size : {1, 2}) {
    const auto plan = plan_of(mask, config_of(cp_size, options.heads, 2));
    const Range border{kSeqlen / cp_size - 1, kSeqlen / cp_size + 1};
    const std::vector<AttnSlice>& own = plan->movement()->forward[0].stages[0].own_slices;
    EXPECT_TRUE(std::any_of(own.begin(), own.end(), [&](const AttnSlice& s) { return s.q_range.contains(border); }));
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
  }
}

// Under TANGRAM_SANITY_CHECK a rank with clean operands must not take a NaN in what comes back for its own.
TEST(Movement, NanOfAnotherRankComesOut) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(0);
  StepInputs inputs = testing::make_inputs(mask, options);
  DistAttnConfig config = config_of(2, options.heads);
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  inputs.v.set(kSeqlen - 1, 0, 0, std::nanf(""));  // rank 1 computes with it for the queries of rank 0
  StepResults results;
  EXPECT_NO_THROW(results = testing::distributed_step(plan_of(mask, config), options, inputs, backend));
  EXPECT_TRUE(std::isnan(results.out.at(0, 0, 0)));
  EXPECT_FALSE(std::isnan(results.out.at(0, 1, 0)));
}

TEST(Movement, CrossAttentionAndOptions) {
  const Mask mask = causal_mask(120, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1);
  options.attn.softcap = 3;
  options.attn.softmax_scale = 0.7f;
  options.seqlen_sink = 2;
  options.dsink_reduce = DsinkReduce::kSum;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  DistAttnConfig config = config_of(4, options.heads, 2);
  testing::expect_close(testing::distributed_step(plan_of(mask, config), options, inputs, backend), expected,
                        kFloat32Tolerance);
  testing::expect_close(testing::distributed_step(random_plan(mask, config, 3, 1), options, inputs, backend), expected,
                        kFloat32Tolerance);
}

TEST(Movement, BytesEqualThePlans) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  for (const int cp_size : {2, 4}) {
    for (const int groups : {1, 2}) {
      for (const bool keep : {false, true}) {
        const HeadConfig heads = heads_of(1, DType::kBFloat16);
        DistAttnConfig config = config_of(cp_size, heads, groups);
        config.overlap.keep_remote_kv = keep;
        Plan plan = *random_plan(mask, config, 3, 9);
        if (keep) plan.movement()->backward = plan.movement()->forward;
        SCOPED_TRACE(::testing::Message() << "cp_size " << cp_size << ", groups " << groups << ", keep " << keep);
        const auto shared = std::make_shared<const Plan>(plan);
        std::atomic<int64_t> forward_bytes = 0, backward_bytes = 0;
        run_local_ranks(cp_size, [&](Communicator& comm) {
          DistAttention attention(shared, comm, backend);
          HostTensor q(DType::kBFloat16, attention.q_rows(), heads.num_heads_q, heads.head_dim), dq = q.clone();
          HostTensor k(DType::kBFloat16, attention.k_rows(), heads.num_heads_kv, heads.head_dim), dk = k.clone();
          HostTensor v(DType::kBFloat16, attention.k_rows(), heads.num_heads_kv, heads.head_dim_v), dv = v.clone();
          HostTensor out(DType::kBFloat16, attention.q_rows(), heads.num_heads_q, heads.head_dim_v), dout = out.clone();
          HostTensor lse(DType::kFloat32, attention.q_rows(), heads.num_heads_q, 1);
          for (HostTensor* tensor : {&q, &k, &v, &dout}) tensor->fill(1);
          KeptKv kept;
          comm.reset_counters();
          attention.forward({q, k, v, out, lse.data<float>(), nullptr, {}, &kept, {}});
          forward_bytes += comm.counters().bytes_received;
          EXPECT_EQ(kept.valid, keep);
          comm.reset_counters();
          attention.backward(
              {q, k, v, out, lse.data<float>(), dout, dq, dk, dv, nullptr, {}, DsinkReduce::kSum, &kept, {}});
          backward_bytes += comm.counters().bytes_received;
        });
        const GridTraffic expected =
            movement_traffic(plan, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, true});
        EXPECT_GT(expected.forward_bytes, 0);
        EXPECT_EQ(forward_bytes, expected.forward_bytes);
        EXPECT_EQ(backward_bytes, expected.backward_bytes);
      }
    }
  }
}

// The formula of docs/design/movement.md, worked out by hand: full mask over 2 ranks of 120 rows, every query to the
// owner of the keys, 4 query heads, 2 K/V heads, dims 4 and 3, bfloat16, dq in float32.
TEST(Movement, BytesByHand) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  for (const int groups : {1, 2}) {
    const auto plan = plan_of(mask, config_of(2, heads_of(1, DType::kBFloat16), groups));
    const GridTraffic traffic = movement_traffic(*plan, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, true});
    constexpr int64_t kRows = 2 * 120, kQ = 4 * 4 * 2, kDout = 4 * 3 * 2, kLse = 4 * 4;
    EXPECT_EQ(traffic.forward_bytes, kRows * (kQ + 4 * 3 * 4 + kLse));
    EXPECT_EQ(traffic.backward_bytes, kRows * (kQ + kDout + 2 * kLse + 4 * 4 * 4));
  }
  EXPECT_THROW(movement_traffic(make_plan(mask, {}), {}), InvalidArgument);
}

TEST(Movement, KeptRowsGiveTheSameResults) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1);
  const StepInputs inputs = testing::make_inputs(mask, options);
  DistAttnConfig config = config_of(4, options.heads, 2);
  config.overlap.keep_remote_kv = true;
  Plan plan = *random_plan(mask, config, 3, 2);
  plan.movement()->backward = plan.movement()->forward;
  const auto shared = std::make_shared<const Plan>(plan);
  const StepResults kept = testing::distributed_step(shared, options, inputs, backend);
  options.use_kept = false;
  const StepResults fetched = testing::distributed_step(shared, options, inputs, backend);
  testing::expect_same_bits(kept, fetched);
}

TEST(Movement, RowsMoveWhileOthersComputeAndResultsReturnMeanwhile) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(1);
  const StepInputs inputs = testing::make_inputs(mask, options);
  constexpr int kStages = 3;
  const auto plan = random_plan(mask, config_of(2, options.heads), kStages, 4);
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int stage = 0; stage < kStages; ++stage) {
        const size_t compute = index_of(trace, pass, TraceKind::kCompute, stage);
        if (stage + 1 < kStages) {
          EXPECT_LT(index_of(trace, pass, TraceKind::kPostCast, stage + 1), compute);
        }
        if (stage == 0) continue;
        EXPECT_LT(compute, index_of(trace, pass, TraceKind::kPostReduce, stage));
        if (stage + 1 < kStages) {
          EXPECT_LT(index_of(trace, pass, TraceKind::kPostReduce, stage),
                    index_of(trace, pass, TraceKind::kCompute, stage + 1));
        }
        EXPECT_LT(index_of(trace, pass, TraceKind::kCompute, kStages - 1),
                  index_of(trace, pass, TraceKind::kWaitReduce, stage));
      }
    }
  });
}

TEST(Movement, RanksWithDifferentTablesFindOutBeforeTheFirstTransfer) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  const DistAttnConfig config = config_of(2, heads_of(0), 1);
  const auto one = random_plan(mask, config, 3, 1), other = random_plan(mask, config, 3, 2);
  run_local_ranks(2, [&](Communicator& comm) {
    EXPECT_THROW(DistAttention(comm.rank() == 0 ? one : other, comm, backend), InvalidArgument);
    EXPECT_EQ(comm.counters().rows_sent, 0);
    DistAttention(one, comm, backend);  // the group is still usable
  });
}

TEST(Movement, ARankThatRefusesItsArgumentsMakesAllThrow) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(0);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, config_of(2, options.heads));
  run_local_ranks(2, [&](Communicator& comm) {
    DistAttention attention(plan, comm, backend);
    StepOptions mine = options;
    if (comm.rank() == 1) mine.attn.softcap = -1;
    StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
    EXPECT_THROW(testing::rank_step(mine, inputs, comm, attention, results), InvalidArgument);
    EXPECT_EQ(comm.counters().rows_sent, 0);
  });
}

TEST(Movement, WhatCannotBeDoneIsRefusedOnAllRanks) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const auto plan = plan_of(mask, config_of(2, heads_of(0)));
  run_local_ranks(2, [&](Communicator& comm) {
    EXPECT_THAT(message_of([&] { DistAttention(plan, comm, testing::DelegatingBackend("no_delta")); }),
                HasSubstr("needs a backend that takes delta (got no_delta, which does not)"));
  });
  run_local_ranks(3, [&](Communicator& comm) {
    EXPECT_THAT(message_of([&] { DistAttention(plan, comm, DenseBackend()); }),
                HasSubstr("plan must be for as many ranks as the communicator has (got 2 and 3)"));
  });
}

TEST(Movement, KeptRowsOfAnotherPlanAreRefused) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(0);
  DistAttnConfig config = config_of(2, options.heads);
  const auto plan = plan_of(mask, config);
  run_local_ranks(2, [&](Communicator& comm) {
    DistAttention attention(plan, comm, backend);
    StepResults r = testing::make_results(attention.q_rows(), attention.k_rows(), options);
    const HostTensor q = r.dq.clone(), k = r.dk.clone(), v = r.dv.clone();
    KeptKv kept;
    kept.valid = true;
    kept.tensors.resize(3);
    EXPECT_THAT(message_of([&] {
                  attention.backward({q,
                                      k,
                                      v,
                                      r.out,
                                      r.lse.data<float>(),
                                      r.out,
                                      r.dq,
                                      r.dk,
                                      r.dv,
                                      nullptr,
                                      {},
                                      DsinkReduce::kSum,
                                      &kept,
                                      {}});
                }),
                HasSubstr("kept must be what forward left"));
  });
}

}  // namespace
}  // namespace tangram
