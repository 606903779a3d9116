// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The order in which the other strategies send and compute, from what executors recorded.
#include <gtest/gtest.h>

#include "runtime/strategy_cases.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using testing::index_of;
using testing::kSeqlen;
using testing::plan_of;
using testing::StepInputs;
using testing::StepOptions;

TEST(StrategyOrder, ChunksOfHcmsMoveWhileOthersCompute) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {12, 6, 4, 4, DType::kFloat32};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 2, {Strategy::kHcms, 0, 0, {1, 1, 1}});
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int chunk = 0; chunk < 3; ++chunk) {
        const size_t compute = index_of(trace, pass, TraceKind::kCompute, chunk);
        if (chunk < 2) {
          EXPECT_LT(index_of(trace, pass, TraceKind::kPostCast, chunk + 1), compute);
        }
        const size_t results = index_of(trace, pass, TraceKind::kPostReduce, chunk);
        EXPECT_LT(compute, results);
        if (chunk < 2) {
          EXPECT_LT(results, index_of(trace, pass, TraceKind::kCompute, chunk + 1));
        }
        EXPECT_LT(index_of(trace, pass, TraceKind::kCompute, 2), index_of(trace, pass, TraceKind::kWaitReduce, chunk));
      }
    }
  });
}

TEST(StrategyOrder, RingSendsBlocksBeforeItComputes) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {2, 1, 4, 4, DType::kFloat32};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 4, {Strategy::kRing, 0, 0, {}});
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int step = 0; step < 3; ++step) {
        EXPECT_LT(index_of(trace, pass, TraceKind::kPostCast, step + 1),
                  index_of(trace, pass, TraceKind::kCompute, step));
      }
    }
    for (int step = 0; step < 3; ++step) {  // gradients come while the next block computes
      EXPECT_LT(index_of(trace, AttnPass::kBackward, TraceKind::kCompute, step + 1),
                index_of(trace, AttnPass::kBackward, TraceKind::kWaitReduce, step));
    }
  });
}

TEST(StrategyOrder, HybridCpSendsRowsAndGradientsBehindComputing) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 140, 180, 240}, true);  // over four ranks, one, one
  const DenseBackend backend;
  StepOptions options;
  options.heads = {2, 1, 4, 4, DType::kFloat32};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 4, {Strategy::kHybridCp, 0, 0, {}, 60});
  ASSERT_EQ(plan->grid()->levels.back().ranks, 4);
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int step = 0; step < 3; ++step) {
        EXPECT_LT(index_of(trace, pass, TraceKind::kPostCast, step + 1),
                  index_of(trace, pass, TraceKind::kCompute, step));
      }
    }
    for (int step = 1; step < 3; ++step) {
      EXPECT_LT(index_of(trace, AttnPass::kBackward, TraceKind::kCompute, step + 1),
                index_of(trace, AttnPass::kBackward, TraceKind::kWaitReduce, step));
    }
  });
}

}  // namespace
}  // namespace tangram
