// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention over the processes of an mpirun: every rank compares the whole result with that of one rank.
#include <gtest/gtest.h>

#include "dist/dense_backend.hpp"
#include "dist/mask_families.hpp"
#include "dist/movement_tables.hpp"
#include "dist/step.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/mpi_group.hpp"

namespace tangram {
namespace {

using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

MpiGroup* the_group = nullptr;
constexpr int64_t kSeqlen = 240;

std::shared_ptr<const Plan> plan_of(const Mask& mask, const HeadConfig& heads, int stages, bool keep) {
  DistAttnConfig config;
  config.cp_size = the_group->communicator().size();
  config.heads = heads;
  config.dispatch.chunk_size = 10;
  config.overlap = {stages, stages, keep};
  return std::make_shared<const Plan>(make_plan(mask, config));
}

TEST(MpiDist, EqualsSingleRank) {
  const testing::DenseBackend backend;
  const std::vector<int64_t> cu_seqlens = {0, 17, 90, 91, 160, 240};
  Communicator& comm = the_group->communicator();
  for (const Mask& mask : {full_mask(kSeqlen, kSeqlen), causal_mask(kSeqlen, kSeqlen), varlen_mask(cu_seqlens, true),
                           sliding_window_mask(kSeqlen, {40, 9})}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int stages : {1, 3}) {
        StepOptions options;
        options.heads = {4, 2, 8, 8, dtype};
        options.seqlen_sink = 1;
        const StepInputs inputs = testing::make_inputs(mask, options);
        DistAttention attention(plan_of(mask, options.heads, stages, stages > 1), comm, backend);
        StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
        testing::rank_step(options, inputs, comm, attention, results);
        // As in dist_attention_test: float32 roundings of partial results.
        testing::expect_close(results, testing::single_step(mask, options, inputs, backend), 2e-5);
      }
    }
  }
}

// Every strategy over mask families and MHA, GQA, MQA; the more ranks share a core, the fewer families.
TEST(MpiDist, StrategiesEqualSingleRank) {
  const testing::DenseBackend backend;
  Communicator& comm = the_group->communicator();
  const int size = comm.size();
  const std::vector<testing::NamedMask> families = testing::mask_families();
  const size_t stride = size <= 2 ? 1 : size <= 4 ? 2 : 3;
  for (size_t f = 0; f < families.size(); f += stride) {
    const Mask& mask = families[f].mask;
    const int num_heads_kv = f / stride % 3 == 0 ? size : f / stride % 3 == 1 ? 1 : 2 * size;
    StepOptions options;
    options.heads = {2 * size, num_heads_kv, 4, 3, DType::kFloat32};
    options.seqlen_sink = 1;
    options.sink_layout = f % 2 == 0 ? SinkLayout::kSh : SinkLayout::kSsh;
    options.use_kept = f % 3 != 0;
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected =
        comm.rank() == 0 ? testing::single_step(mask, options, inputs, backend) : StepResults();
    for (const Strategy strategy : {Strategy::kUlysses, Strategy::kHcms, Strategy::kRing, Strategy::kAllGather,
                                    Strategy::kUsp, Strategy::kLoongTrain, Strategy::kHybridCp}) {
      SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", " << families[f].name << ", K/V heads "
                                        << num_heads_kv);
      DistAttnConfig config;
      config.cp_size = size;
      config.heads = options.heads;
      config.strategy.name = strategy;
      DistAttention attention(std::make_shared<const Plan>(make_plan(mask, config)), comm, backend);
      StepResults results = testing::make_results(mask.seqlen_q(), mask.seqlen_k(), options);
      testing::rank_step(options, inputs, comm, attention, results);
      if (comm.rank() == 0) testing::expect_close(results, expected, 2e-5);
    }
  }
}

TEST(MpiDist, MovedQueriesEqualSingleRank) {
  const testing::DenseBackend backend;
  Communicator& comm = the_group->communicator();
  if (comm.size() == 1) return;
  const std::vector<int64_t> cu_seqlens = {0, 17, 90, 91, 160, 240};
  for (const Mask& mask : {causal_mask(kSeqlen, kSeqlen), varlen_mask(cu_seqlens, true)}) {
    for (const int groups : {1, 2}) {
      StepOptions options;
      options.heads = {4, 2, 8, 8, DType::kFloat32};
      options.seqlen_sink = 1;
      const StepInputs inputs = testing::make_inputs(mask, options);
      const StepResults expected = testing::single_step(mask, options, inputs, backend);
      DistAttnConfig config;
      config.cp_size = comm.size();
      config.heads = options.heads;
      config.dispatch.chunk_size = 10;
      config.movement = {Movement::kQo, groups};
      Plan plan = make_plan(mask, config);
      const auto check = [&] {
        DistAttention attention(std::make_shared<const Plan>(plan), comm, backend);
        StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
        testing::rank_step(options, inputs, comm, attention, results);
        testing::expect_close(results, expected, 2e-5);
      };
      check();
      const auto draw = [&](unsigned seed) {
        return testing::RandomMovement(mask, plan.q_dispatch, plan.k_dispatch, groups, 3, seed).draw();
      };
      plan.movement = {groups, draw(1), draw(2)};
      check();
    }
  }
}

TEST(MpiDist, RanksThatDisagreeFindOutBeforeTheFirstTransfer) {
  Communicator& comm = the_group->communicator();
  if (comm.size() == 1) return;
  const testing::DenseBackend backend;
  const HeadConfig heads{2, 2, 8, 8, DType::kFloat32};
  const auto plan =
      plan_of(comm.rank() == 1 ? causal_mask(kSeqlen, kSeqlen) : full_mask(kSeqlen, kSeqlen), heads, 1, false);
  comm.reset_counters();
  EXPECT_THROW(DistAttention(plan, comm, backend), InvalidArgument);
  EXPECT_EQ(comm.counters().rows_sent, 0);
  comm.barrier("still usable");
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  tangram::MpiGroup group;
  tangram::the_group = &group;
  return RUN_ALL_TESTS();
}
