// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What passes on the host allocated against what their programs and Plan::peak_bytes say.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "plan/program/memory.hpp"
#include "plan/program/program_cases.hpp"
#include "runtime/dense_backend.hpp"
#include "runtime/mask_families.hpp"
#include "support/sample.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using testing::heads_of;

/// What one rank has in memory in both passes.
struct MeasuredPass {
  int64_t argument_bytes = 0;
  int64_t region_bytes = 0;
};
struct MeasuredStep {
  MeasuredPass forward, backward;

  int64_t peak_bytes() const {
    return std::max(forward.argument_bytes + forward.region_bytes, backward.argument_bytes + backward.region_bytes);
  }
};

HostTensor ones(DType dtype, int64_t rows, int heads, int dim) {
  HostTensor tensor(dtype, rows, heads, dim);
  tensor.fill(1);
  return tensor;
}

/// Runs a step over the ranks of a plan.
std::vector<MeasuredStep> measure(const std::shared_ptr<const Plan>& plan, const CallShape& call, bool use_kept) {
  const DenseBackend backend;
  const HeadConfig& h = plan->config.heads;
  std::vector<MeasuredStep> steps(static_cast<size_t>(plan->cp_size()));
  run_local_ranks(plan->cp_size(), [&](Communicator& comm) {
    DistAttention attention(plan, comm, backend);
    const int64_t q_rows = attention.q_rows(), k_rows = attention.k_rows();
    const HostTensor q = ones(h.dtype, q_rows, h.num_heads_q, h.head_dim);
    const HostTensor k = ones(h.dtype, k_rows, h.num_heads_kv, h.head_dim);
    const HostTensor v = ones(h.dtype, k_rows, h.num_heads_kv, h.head_dim_v);
    const HostTensor dout = ones(call.dout, q_rows, h.num_heads_q, h.head_dim_v);
    HostTensor out(call.out, q_rows, h.num_heads_q, h.head_dim_v);
    HostTensor lse(DType::kFloat32, q_rows, h.num_heads_q, 1);
    HostTensor dq(call.dq, q_rows, h.num_heads_q, h.head_dim);
    HostTensor dk(call.dk, k_rows, h.num_heads_kv, h.head_dim);
    HostTensor dv(call.dv, k_rows, h.num_heads_kv, h.head_dim_v);
    const int64_t sets = call.sink_layout == SinkLayout::kSh ? 1 : q_rows;
    std::vector<float> sinks(static_cast<size_t>(sets * call.seqlen_sink * h.num_heads_q)), dsinks = sinks;
    Sink sink;
    if (call.seqlen_sink > 0) sink = {sinks.data(), call.seqlen_sink, call.sink_layout};
    float* const dsink = call.seqlen_sink > 0 && call.wants_dsink ? dsinks.data() : nullptr;
    KeptKv kept;
    KeptKv* const kept_pointer = use_kept ? &kept : nullptr;

    MeasuredStep& step = steps[static_cast<size_t>(comm.rank())];
    attention.forward({q, k, v, out, lse.data<float>(), nullptr, sink, kept_pointer, {}});
    step.forward = {q.bytes() + k.bytes() + v.bytes() + out.bytes() + lse.bytes(), attention.memory_use().peak_bytes};
    attention.backward(
        {q, k, v, out, lse.data<float>(), dout, dq, dk, dv, dsink, sink, DsinkReduce::kSum, kept_pointer, {}});
    step.backward = {step.forward.argument_bytes + dout.bytes() + dq.bytes() + dk.bytes() + dv.bytes(),
                     attention.memory_use().peak_bytes};
  });
  return steps;
}

/// The step that Plan::peak_bytes is for.
void expect_peak_bytes(const std::shared_ptr<const Plan>& plan) {
  const DType dtype = plan->config.heads.dtype;
  const std::vector<MeasuredStep> steps = measure(plan, CallShape::with_results(dtype, dtype), true);
  for (int rank = 0; rank < plan->cp_size(); ++rank) {
    EXPECT_EQ(plan->peak_bytes(rank), steps[static_cast<size_t>(rank)].peak_bytes()) << "rank " << rank;
  }
}

std::vector<Mask> masks_over(int64_t rows) {
  return {causal_mask(rows, rows), sliding_window_mask(rows, {5, 0}),
          varlen_mask(std::vector<int64_t>{0, 3, rows / 2 + 1, rows - 2, rows}, true)};
}

DistAttnConfig config_of(int cp_size, const HeadConfig& heads, DType reduce_dtype) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.reduce_dtype = reduce_dtype;
  return config;
}

constexpr DType kReduceTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr int kStep = support::kSanitized ? 3 : 1;

TEST(HostMemory, PeakBytesAreThoseOfStepsOfAllStrategies) {
  for (int cp_size = 2; cp_size <= 8; cp_size += kStep) {
    const int variant = cp_size % 4;
    const HeadConfig heads = heads_of(cp_size, variant, 4, 3, DType::kBFloat16);
    for (const Mask& mask : masks_over(8 * cp_size)) {
      for (const Strategy strategy : testing::kStrategies) {
        SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size);
        expect_peak_bytes(testing::plan_of(mask, heads, cp_size, {strategy, 0, 0, {}}, kReduceTypes[cp_size % 2]));
      }
    }
  }
}

TEST(HostMemory, PeakBytesAreThoseOfStepsOfKvPlans) {
  for (int cp_size = 2; cp_size <= 8; cp_size += kStep) {
    const HeadConfig heads = heads_of(cp_size, cp_size % 3, 4, 3, DType::kBFloat16);
    for (const Mask& mask : masks_over(16 * cp_size)) {
      for (const DType reduce_dtype : kReduceTypes) {
        for (const auto& [stages, keep] : {std::pair(0, false), std::pair(1, false), std::pair(2, true)}) {
          SCOPED_TRACE(::testing::Message() << "cp_size " << cp_size << ", stages " << stages << ", kept " << keep);
          DistAttnConfig config = config_of(cp_size, heads, reduce_dtype);
          config.overlap = {stages, stages, keep};
          expect_peak_bytes(std::make_shared<const Plan>(make_plan(mask, config)));
        }
      }
    }
  }
}

TEST(HostMemory, PeakBytesAreThoseOfStepsInWhichQueriesMove) {
  for (int cp_size = 2; cp_size <= 8; cp_size += kStep) {
    const HeadConfig heads = heads_of(cp_size, cp_size % 2, 4, 3, DType::kBFloat16);
    for (const Mask& mask : masks_over(16 * cp_size)) {
      for (const Movement algorithm : {Movement::kQo, Movement::kBinaryGreedy}) {
        for (const int groups : {1, cp_size}) {
          SCOPED_TRACE(::testing::Message()
                       << to_string(algorithm) << ", cp_size " << cp_size << ", groups " << groups);
          DistAttnConfig config = config_of(cp_size, heads, kReduceTypes[cp_size % 2]);
          config.movement = {algorithm, groups};
          config.overlap.keep_remote_kv = groups == 1;
          expect_peak_bytes(std::make_shared<const Plan>(make_plan(mask, config)));
        }
      }
    }
  }
}

TEST(HostMemory, PassesAllocateWhatTheirProgramsSay) {
  testing::Random random(11);
  int num_compared = 0;
  for (int i = 0; i < 400; i += kStep) {
    testing::Case drawn;
    try {
      drawn = testing::random_case(random);
    } catch (const InvalidArgument&) {
      continue;  // heads or ranks that a strategy cannot split
    }
    SCOPED_TRACE(::testing::Message() << i << ": " << drawn.text << ", kept " << drawn.kept);
    const std::vector<MeasuredStep> steps = measure(drawn.plan, drawn.call, drawn.kept);
    CallShape call = drawn.call;
    call.wants_dsink = call.wants_dsink && call.seqlen_sink > 0;
    for (int rank = 0; rank < drawn.plan->cp_size(); ++rank) {
      const MeasuredStep& step = steps[static_cast<size_t>(rank)];
      const PassMemory forward = pass_memory(*drawn.plan, rank, AttnPass::kForward, call, drawn.kept);
      const PassMemory backward = pass_memory(*drawn.plan, rank, AttnPass::kBackward, call, drawn.kept);
      EXPECT_EQ(forward.region_bytes, step.forward.region_bytes);
      EXPECT_EQ(backward.region_bytes, step.backward.region_bytes);
      EXPECT_EQ(forward.argument_bytes, step.forward.argument_bytes);
      EXPECT_EQ(backward.argument_bytes, step.backward.argument_bytes);
      ++num_compared;
    }
  }
  EXPECT_GT(num_compared, 500 / kStep);
}

}  // namespace
}  // namespace tangram
