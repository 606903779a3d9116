// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plan/program/grid_plans.hpp"
#include "plan/program/writer.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kRowBytes = 4;

/// Regions of 1, 2, 4 and 8 rows; the first two may be kept, the second is unused.
Program small_program() {
  ProgramWriter writer(kHostTarget);
  const TensorRef kept = writer.arena(DType::kFloat32, 1, 1, 1);
  writer.arena(DType::kFloat32, 2, 1, 1);
  writer.keep_regions();
  const TensorRef sent = writer.work(DType::kFloat32, 4, 1, 1), landed = writer.arena(DType::kFloat32, 8, 1, 1);
  writer.zero(sent);
  const int stage = writer.add_cast({{{shared({}), sent, landed, ""}}});
  writer.cast(stage);
  writer.zero(kept);
  writer.wait(stage);
  writer.zero(landed);
  writer.zero(kept);
  return writer.take();
}

TEST(ProgramMemory, RegionsLiveFromTheFirstOperationToTheLast) {
  const Program program = small_program();
  const RegionLives lives = region_lives(program);
  EXPECT_THAT(lives.born, ElementsAre(ElementsAre(2), ElementsAre(3), ElementsAre(0), IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(lives.dying,
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), ElementsAre(2), ElementsAre(3), ElementsAre(0)));
  EXPECT_EQ(program_memory(program, lives, KeptRegions::kNone), (1 + 4 + 8) * kRowBytes);
}

TEST(ProgramMemory, WhatIsKeptIsThereAsLongAsThePassOrBeyondIt) {
  Program program = small_program();
  EXPECT_EQ(program_memory(program, region_lives(program), KeptRegions::kGiven), (1 + 2 + 4 + 8) * kRowBytes);
  EXPECT_EQ(program_memory(program, region_lives(program), KeptRegions::kLeft), (1 + 4 + 8) * kRowBytes);
  program.regions[1].rows = 64;  // made at the end, when the others are gone
  EXPECT_EQ(program_memory(program, region_lives(program), KeptRegions::kLeft), (1 + 64) * kRowBytes);
}

TEST(ProgramMemory, BackwardHasMoreArgumentsThanForward) {
  const HeadConfig heads{4, 2, 8, 16, DType::kBFloat16};
  const auto plan = testing::plan_of(causal_mask(64, 64), heads, 2, {Strategy::kRing, 0, 0, {}});
  const CallShape call = CallShape::with_results(DType::kBFloat16, DType::kFloat32);
  constexpr int64_t kQ = 32 * 4 * 8, kOut = 32 * 4 * 16, kLse = 32 * 4, kKv = 32 * 2 * (8 + 16);
  const int64_t forward = 2 * kQ + 4 * kOut + 4 * kLse + 2 * kKv;
  EXPECT_EQ(pass_memory(*plan, 0, AttnPass::kForward, call, false).argument_bytes, forward);
  EXPECT_EQ(pass_memory(*plan, 0, AttnPass::kBackward, call, false).argument_bytes,
            forward + 2 * kOut + 4 * kQ + 4 * kKv);
}

/// Documents as long as the chunks of a zigzag dispatch, so that no rank needs what another has, but for a longer one
/// that two ranks share.
Mask mostly_alone(int64_t rows, int cp_size) {
  std::vector<int64_t> borders{0};
  for (int chunk = 2; chunk <= 2 * cp_size; ++chunk) borders.push_back(rows / (2 * cp_size) * chunk);
  return varlen_mask(borders, false);
}

TEST(ProgramMemory, AllRanksTogetherAreThoseOneByOne) {
  std::set<int64_t> different;
  for (const int cp_size : {1, 2, 3, 6, 8}) {
    for (const Mask& mask :
         {causal_mask(240, 240), sliding_window_mask(240, {20, 0}),
          varlen_mask(std::vector<int64_t>{0, 17, 20, 91, 160, 240}, true), mostly_alone(240, cp_size)}) {
      for (const Strategy strategy : testing::kStrategies) {
        SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size);
        const auto plan = testing::plan_of(mask, testing::heads_of(cp_size, cp_size % 4, 8, 8, DType::kBFloat16),
                                           cp_size, {strategy, 0, 0, {}}, DType::kBFloat16);
        const std::vector<int64_t> bytes = peak_bytes_of_ranks(*plan, cp_size);
        ASSERT_EQ(std::ssize(bytes), cp_size);
        for (int rank = 0; rank < cp_size; ++rank) {
          EXPECT_EQ(bytes[static_cast<size_t>(rank)], plan->peak_bytes(rank)) << "rank " << rank;
        }
        if (strategy == Strategy::kHybridCp && cp_size == 6) different.insert(bytes.begin(), bytes.end());
      }
    }
  }
  EXPECT_GT(different.size(), 3U) << "ranks with other rows need other memory";
}

}  // namespace
}  // namespace tangram
