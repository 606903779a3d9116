// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/gpu_target.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/copy_engine/kernel_transfers.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 4;

Plan causal_plan() {
  DistAttnConfig config;
  config.cp_size = kRanks;
  config.heads = {8, 2, 64, 64, DType::kBFloat16};
  config.overlap.num_stages_fwd = config.overlap.num_stages_bwd = 1;
  return make_plan(causal_mask(8192, 8192), config);
}

GpuAbilities of_copy_engines() {
  return {.transfers = kCopyEngineTransfers, .max_ready_flags = 64, .local_kv_halo = 127};
}

ProgramTarget target(const Plan& plan, const GpuAbilities& abilities, DeviceOverlap overlap = DeviceOverlap::kAuto) {
  return gpu_target(plan, 1, abilities, overlap, overlap, true);
}

TEST(GpuTarget, OneCallWaitsForKeysWhereItCan) {
  const Plan plan = causal_plan();
  const ProgramTarget all = target(plan, of_copy_engines());
  EXPECT_EQ(all.forward_calls, KeyCalls::kAsTheyCome);
  EXPECT_EQ(all.backward_calls, KeyCalls::kAsTheyCome);
  EXPECT_EQ(all.local_kv_halo, 127);
  EXPECT_TRUE(all.stores_at_owners);
  EXPECT_EQ(all.ring_buffer_steps, 1);

  GpuAbilities shared = of_copy_engines();
  shared.shares_gpus = true;
  EXPECT_EQ(target(plan, shared).forward_calls, KeyCalls::kByStage);
  GpuAbilities few_flags = of_copy_engines();
  few_flags.max_ready_flags = kRanks - 1;
  EXPECT_EQ(target(plan, few_flags).forward_calls, KeyCalls::kByStage);
  EXPECT_EQ(target(plan, GpuAbilities{}).forward_calls, KeyCalls::kByStage);
  EXPECT_EQ(target(plan, GpuAbilities{}).ring_buffer_steps, -1);
}

TEST(GpuTarget, WhereAllKeysAreWantedTheyComeFirstAndFromOneTensor) {
  GpuAbilities abilities = of_copy_engines();
  abilities.wants_all_keys = true;
  const ProgramTarget wanted = target(causal_plan(), abilities);
  EXPECT_EQ(wanted.forward_calls, KeyCalls::kOnce);
  EXPECT_EQ(wanted.local_kv_halo, -1);
  EXPECT_EQ(target(causal_plan(), abilities, DeviceOverlap::kSingleLaunch).forward_calls, KeyCalls::kAsTheyCome);
}

TEST(GpuTarget, OptionsDecideAndWhatCannotBeDoneIsRefused) {
  EXPECT_EQ(target(causal_plan(), of_copy_engines(), DeviceOverlap::kStages).backward_calls, KeyCalls::kByStage);
  EXPECT_EQ(target(causal_plan(), of_copy_engines(), DeviceOverlap::kNone).backward_calls, KeyCalls::kOnce);
  GpuAbilities nccl{.transport = "nccl", .backend = "sm90", .max_ready_flags = 64};
  try {
    target(causal_plan(), nccl, DeviceOverlap::kSingleLaunch);
    FAIL() << "must be refused";
  } catch (const NotAvailable& error) {
    EXPECT_THAT(error.what(), HasSubstr("single_launch needs a transport with arrival flags"));
    EXPECT_THAT(error.what(), HasSubstr("got nccl, sm90"));
  }
}

}  // namespace
}  // namespace tangram
