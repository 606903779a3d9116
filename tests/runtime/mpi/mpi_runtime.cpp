// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention over the processes of an mpirun: every rank compares the whole result with that of one rank.
#include <gtest/gtest.h>

#include "runtime/dense_backend.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/rank_suite.hpp"
#include "runtime/step.hpp"
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
  config.dispatch = {DispatchAlgorithm::kTangram, 10, 0};  // auto leaves short masks in sequence
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
        // Tolerance as in dist_attention_test: float32 roundings of partial results.
        testing::expect_close(results, testing::single_step(mask, options, inputs, backend), 2e-5);
      }
    }
  }
}

TEST(MpiDist, StrategiesEqualSingleRank) { testing::check_strategies(the_group->communicator()); }

TEST(MpiDist, MovedQueriesEqualSingleRank) { testing::check_moved_queries(the_group->communicator()); }

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
