// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What every transport between processes must pass: run by each rank, rank 0 compares with a single one.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/dense_backend.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/movement_tables.hpp"
#include "runtime/step.hpp"
#include "support/sample.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::testing {

/// Every strategy over mask families and MHA, GQA, MQA; the more ranks share a core, the fewer families; a third of
/// those but in long runs.
inline void check_strategies(Communicator& comm) {
  const DenseBackend backend;
  const int size = comm.size();
  const std::vector<NamedMask> families = mask_families();
  const size_t stride = size <= 2 ? 1 : size <= 4 ? 2 : 3;
  support::Sample sample(3);
  for (size_t f = 0; f < families.size(); f += stride) {
    const Mask& mask = families[f].mask;
    const int num_heads_kv = f / stride % 3 == 0 ? size : f / stride % 3 == 1 ? 1 : 2 * size;
    StepOptions options;
    options.heads = {2 * size, num_heads_kv, 4, 3, DType::kFloat32};
    options.seqlen_sink = 1;
    options.sink_layout = f % 2 == 0 ? SinkLayout::kSh : SinkLayout::kSsh;
    options.use_kept = f % 3 != 0;
    const StepInputs inputs = make_inputs(mask, options);
    const StepResults expected = comm.rank() == 0 ? single_step(mask, options, inputs, backend) : StepResults();
    for (const Strategy strategy : {Strategy::kUlysses, Strategy::kHcms, Strategy::kRing, Strategy::kAllGather,
                                    Strategy::kUsp, Strategy::kLoongTrain, Strategy::kHybridCp}) {
      if (!sample.takes_next()) continue;
      SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", " << families[f].name << ", K/V heads "
                                        << num_heads_kv);
      DistAttnConfig config;
      config.cp_size = size;
      config.heads = options.heads;
      config.strategy.name = strategy;
      DistAttention attention(std::make_shared<const Plan>(make_plan(mask, config)), comm, backend);
      StepResults results = make_results(mask.seqlen_q(), mask.seqlen_k(), options);
      rank_step(options, inputs, comm, attention, results);
      if (comm.rank() == 0) expect_close(results, expected, 2e-5);
    }
  }
}

/// Queries that move as the planner and as chance would have it, in one head group and two.
inline void check_moved_queries(Communicator& comm) {
  const DenseBackend backend;
  if (comm.size() == 1) return;
  const std::vector<int64_t> cu_seqlens = {0, 17, 90, 91, 160, 240};
  for (const Mask& mask : {causal_mask(kSeqlen, kSeqlen), varlen_mask(cu_seqlens, true)}) {
    for (const int groups : {1, 2}) {
      StepOptions options;
      options.heads = {4, 2, 8, 8, DType::kFloat32};
      options.seqlen_sink = 1;
      const StepInputs inputs = make_inputs(mask, options);
      const StepResults expected = single_step(mask, options, inputs, backend);
      DistAttnConfig config;
      config.cp_size = comm.size();
      config.heads = options.heads;
      config.dispatch.chunk_size = 10;
      config.movement = {Movement::kQo, groups};
      Plan plan = make_plan(mask, config);
      const auto check = [&] {
        DistAttention attention(std::make_shared<const Plan>(plan), comm, backend);
        StepResults results = make_results(kSeqlen, kSeqlen, options);
        rank_step(options, inputs, comm, attention, results);
        expect_close(results, expected, 2e-5);
      };
      check();
      const auto draw = [&](unsigned seed) {
        return RandomMovement(mask, plan.q_dispatch, plan.k_dispatch, groups, 3, seed).draw();
      };
      plan.tables = MovementPlan{groups, draw(1), draw(2)};
      check();
    }
  }
}

}  // namespace tangram::testing
