// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "schedule/build_cases.hpp"
#include "schedule/serial_build.hpp"
#include "support/sample.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::schedule::builder {
namespace {

Report build_blocks(BuiltImages& images, const Choice& choice, const ImageCase& c) {
  std::vector<std::byte> memory;
  const Blocks blocks = blocks_of(choice, c, memory);
  return images.build([&](const TurnBuild& build) { run_build(build, blocks); });
}

TEST(BuildBlocks, EqualsTheListsOfTheHostBitForBit) {
  std::mt19937 rng(1);
  for (const ImageCase& c : block_cases()) {
    BuiltImages images(c);
    for (int round = 0; round < support::rounds(1000, 30); ++round) {
      const Choice choice = random_choice(rng, c);
      ASSERT_EQ(build_blocks(images, choice, c).problem, Problem::kNone);
      images.expect_as_host(slices_of(choice, c));
      ASSERT_FALSE(HasFailure()) << "round " << round << ", blocks of " << choice.block << ", causal " << choice.causal;
    }
  }
}

// Slices of the two passes are cut one way and the other: both are the mask that the host makes of these indices.
TEST(BuildBlocks, BothPassesShowTheBlocks) {
  std::mt19937 rng(2);
  const ImageCase c = block_cases()[0];
  for (int round = 0; round < 20; ++round) {
    const Choice choice = random_choice(rng, c);
    const Mask mask = mask_from_block_indices({.seqlen_q = c.shape.seqlen_q,
                                               .seqlen_k = c.shape.seqlen_k,
                                               .block_q = choice.block,
                                               .block_k = choice.block,
                                               .indices = choice.indices,
                                               .causal = choice.causal});
    const SliceLists lists = slices_of(choice, c);
    for (const auto& slices : {lists.by_rows, lists.by_keys}) {
      EXPECT_EQ(Mask(c.shape.seqlen_q, c.shape.seqlen_k, slices).area(), mask.area());
      int64_t shared = 0;
      for (const AttnSlice& slice : slices) {
        for (const AttnSlice& of_mask : mask.slices()) shared += area(intersect(slice, of_mask));
      }
      EXPECT_EQ(shared, mask.area());
    }
  }
}

TEST(BuildBlocks, WhatIsRefusedLeavesAMaskThatShowsNothing) {
  const ImageCase c = case_of(512, 640, 8, 1, {.max_documents = 4, .max_slices = 40});
  BuiltImages images(c);
  const Choice good{{0, 3, -1, 4, 1, -1, -1, -1, -1, 0, 1, 2}, 3, 128, false};
  const auto with = [&](size_t at, int32_t index) {
    Choice choice = good;
    choice.indices[at] = index;
    return choice;
  };
  struct Case {
    Choice choice;
    Problem problem;
    int32_t index;
    int64_t got;
  };
  int64_t num_refused = 0;
  for (const Case& wrong : std::vector<Case>{{with(4, 5), Problem::kBlockOutside, 1, 5},
                                             {with(9, -2), Problem::kBlockOutside, 3, -2},
                                             {with(1, 0), Problem::kBlockRepeats, 0, 0},
                                             {with(11, 1), Problem::kBlockRepeats, 3, 1},
                                             {with(7, 2), Problem::kBlockBehindPadding, 2, 2}}) {
    const Report report = build_blocks(images, wrong.choice, c);
    EXPECT_EQ(report.num_refused, ++num_refused);
    EXPECT_EQ(report.problem, wrong.problem);
    EXPECT_EQ(report.index, wrong.index);
    EXPECT_EQ(report.got, wrong.got);
    EXPECT_EQ(report.other, 5);
    images.expect_as_host({});
    ASSERT_FALSE(HasFailure()) << num_refused;
  }
  EXPECT_EQ(build_blocks(images, good, c).num_refused, num_refused) << "the next one is taken";
  images.expect_as_host(slices_of(good, c));
}

// A slice of a block that is longer than 128 rows is in more tiles than a buffer has room for.
TEST(BuildBlocks, RunsThatHaveNoRoomAreRefused) {
  const ImageCase c = case_of(4096, 4096, 8, 1, {.max_documents = 1, .max_slices = 32});
  BuiltImages images(c);
  Choice choice{{}, 4, 512, false};
  for (int32_t row = 0; row < 8; ++row) {
    for (int32_t i = 0; i < 4; ++i) choice.indices.push_back(2 * i + row % 2);
  }
  const Report report = build_blocks(images, choice, c);
  EXPECT_EQ(report.problem, Problem::kForwardRuns);
  EXPECT_EQ(report.got, 4 * 256);
  EXPECT_EQ(report.other, 2 * 256 + 32 * 11);
  images.expect_as_host({});
}

TEST(BuildBlocks, TurnsThatHaveNoRoomAreRefused) {
  const ImageCase c = case_of(512, 640, 8, 1, {.max_documents = 4, .max_slices = 40, .deterministic = true});
  BuiltImages images(c);
  const Choice good{{0, 3, -1, 4, 1, -1, -1, -1, -1, 0, 1, 2}, 3, 128, false};
  std::vector<std::byte> memory;
  const Blocks blocks = blocks_of(good, c, memory);
  const Report report = images.build([&](TurnBuild build) {
    build.turns.max_segments = 13;
    run_build(build, blocks);
  });
  EXPECT_EQ(report.problem, Problem::kTurns);
  EXPECT_EQ(report.got, 14) << "a segment and an end for each of seven runs";
  EXPECT_EQ(report.other, 13);
  images.expect_as_host({});
  EXPECT_EQ(build_blocks(images, good, c).num_refused, 1) << "the next one is taken";
  images.expect_as_host(slices_of(good, c));
}

}  // namespace
}  // namespace tangram::schedule::builder
