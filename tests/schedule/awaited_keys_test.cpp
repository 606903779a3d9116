// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/awaited_keys.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tangram/error.hpp"

namespace tangram::schedule {
namespace {

TEST(AwaitedKeys, NoneAreThereFromTheStart) {
  for (const AwaitedKeys& late :
       {AwaitedKeys(), AwaitedKeys({}, 100), AwaitedKeys(std::vector<KeyReadyFlag>{{{40, 40}, 3}}, 100)}) {
    EXPECT_TRUE(late.empty());
    EXPECT_EQ(late.turn(0, 100), 0);
    EXPECT_EQ(late.num_keys(), 0);
    EXPECT_EQ(late.all(), 0U);
  }
}

TEST(AwaitedKeys, ATileWaitsForTheLastFlagOfItsGranules) {
  // Flag 7 comes first, though its keys lie behind; [32, 40) shares a granule with keys that are there.
  const AwaitedKeys late(std::vector<KeyReadyFlag>{{{64, 96}, 7}, {{32, 40}, 2}}, 200);
  EXPECT_EQ(late.flags(), (std::vector<int32_t>{7, 2}));
  EXPECT_EQ(late.num_turns(), 2);
  EXPECT_EQ(late.all(), 0b11U);
  EXPECT_EQ(late.num_keys(), 48);  // three granules of 16
  EXPECT_EQ(late.turn(0, 32), 0);
  EXPECT_EQ(late.turn(47, 48), 2);  // by up to 15 keys more than it needs
  EXPECT_EQ(late.turn(48, 65), 1);
  EXPECT_EQ(late.turn(0, 200), 2);
  EXPECT_EQ(late.turn(96, 200), 0);
}

TEST(AwaitedKeys, AFlagOfSeveralKeyRangesIsOneTurn) {
  const AwaitedKeys late(std::vector<KeyReadyFlag>{{{0, 16}, 5}, {{32, 48}, 5}}, 48);
  EXPECT_EQ(late.num_turns(), 1);
  EXPECT_EQ(late.needed(), (std::vector<uint64_t>{1, 0, 1}));
}

TEST(AwaitedKeys, SixtyFourFlagsFillAWordAndMoreAreRefused) {
  std::vector<KeyReadyFlag> ready_flags;
  for (int32_t i = 0; i < 64; ++i) ready_flags.push_back({{i, i + 1}, i});
  EXPECT_EQ(AwaitedKeys(ready_flags, 100).all(), ~uint64_t{0});
  ready_flags.push_back({{64, 65}, 64});
  EXPECT_THROW(AwaitedKeys(ready_flags, 100), InvalidArgument);
}

TEST(AwaitedKeys, KeysOutsideOfTheSequenceAreRefused) {
  EXPECT_THROW(AwaitedKeys(std::vector<KeyReadyFlag>{{{-1, 3}, 0}}, 100), InvalidArgument);
  EXPECT_THROW(AwaitedKeys(std::vector<KeyReadyFlag>{{{90, 101}, 0}}, 100), InvalidArgument);
  EXPECT_THROW(AwaitedKeys(std::vector<KeyReadyFlag>{{{0, 3}, -1}}, 100), InvalidArgument);
}

}  // namespace
}  // namespace tangram::schedule
