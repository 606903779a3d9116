// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/host/host_runner.hpp"

#include <gtest/gtest.h>

#include "plan/program/emit.hpp"
#include "plan/program/grid_plans.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

int64_t peak_bytes(const HostProgram& program) {
  return program_memory(program.program, program.lives, KeptRegions::kNone);
}

HostProgram ring_program(int cp_size, bool backward) {
  constexpr int64_t kRowsOfRank = 32;
  const auto plan = testing::plan_of(full_mask(kRowsOfRank * cp_size, kRowsOfRank * cp_size),
                                     {8, 2, 8, 8, DType::kFloat32}, cp_size, {Strategy::kRing, 0, 0, {}});
  const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
  return HostProgram(backward ? backward_program(*plan, 0, call, kHostTarget, false)
                              : forward_program(*plan, 0, call, kHostTarget));
}

TEST(HostRunner, ARingHoldsAsManyBlocksHoweverManyRanksItHas) {
  constexpr int64_t kBlock = 32 * 2 * 8 * 4;  // K or V
  EXPECT_EQ(peak_bytes(ring_program(4, false)), 2 * 2 * kBlock);
  EXPECT_EQ(peak_bytes(ring_program(16, false)), 2 * 2 * kBlock);
  EXPECT_EQ(peak_bytes(ring_program(4, true)), peak_bytes(ring_program(16, true)));
}

TEST(HostRunner, TensorsOfOneExchangeMoveTogether) {
  const HostProgram program = ring_program(4, false);
  ASSERT_EQ(program.program.casts.size(), 3U);
  ASSERT_EQ(program.casts[1].size(), 1U);
  EXPECT_EQ(program.casts[1][0].num_items, 2U) << "keys and values";
  EXPECT_EQ(program.casts[1][0].label, "ring kv 2");
}

TEST(HostRunner, TensorsOfDifferentExchangesMoveApart) {
  const auto plan =
      testing::plan_of(full_mask(48, 24), {4, 2, 8, 8, DType::kFloat32}, 2, {Strategy::kUlysses, 0, 0, {}});
  const HostProgram program(forward_program(*plan, 0, CallShape::with_results(DType::kFloat32, DType::kFloat32),
                                            {.sends_from_anywhere = true}));
  ASSERT_EQ(program.casts[0].size(), 2U);
  EXPECT_EQ(program.casts[0][0].label, "q to heads 0");
  EXPECT_EQ(program.casts[0][1].label, "kv to heads 0");
  EXPECT_EQ(program.casts[0][1].num_items, 2U);
}

}  // namespace
}  // namespace tangram
