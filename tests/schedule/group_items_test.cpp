// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/group_items.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

using Cells = std::set<std::pair<int64_t, int64_t>>;  // of rows and groups

/// Blocks of `rows` by `keys` at random, of which every third row of blocks has none.
std::vector<AttnSlice> random_blocks(int64_t seqlen_q, int64_t seqlen_k, int64_t rows, int64_t keys,
                                     std::mt19937& random) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < seqlen_q; q += rows) {
    for (int64_t k = 0; k < seqlen_k && q / rows % 3 != 1; k += keys) {
      if (random() % 3 == 0) slices.push_back(AttnSlice::full({q, std::min(q + rows, seqlen_q)}, {k, k + keys}));
    }
  }
  return slices;
}

Cells cells_of(const std::vector<AttnSlice>& slices) {
  Cells cells;
  for (const AttnSlice& slice : slices) {
    for (int64_t q = slice.q_range.begin; q < slice.q_range.end; ++q) {
      for (int64_t k = slice.k_range.begin; k < slice.k_range.end; k += kGroupKeys) cells.insert({q, k / kGroupKeys});
    }
  }
  return cells;
}

TEST(GroupItems, ListWhatEachRowSeesOnceAndLongestFirst) {
  std::mt19937 random(3);
  for (const int64_t block : {16, 32, 64, 128}) {
    const std::vector<AttnSlice> slices = random_blocks(250, 1024, block, block, random);
    const std::optional<GroupList> list = group_items(build_tile_list(slices, 250, 1024, {16, 128}));
    ASSERT_TRUE(list.has_value());
    Cells seen;
    std::set<int64_t> rows;
    int32_t most = INT32_MAX;
    for (const GroupItem& item : list->items) {
      EXPECT_LE(item.num_groups, most);
      most = item.num_groups;
      for (int32_t row = item.row_begin; row < item.row_end; ++row) {
        EXPECT_TRUE(rows.insert(row).second);
        for (int32_t g = 0; g < item.num_groups; ++g) {
          const int32_t entry = list->groups[static_cast<size_t>(item.group_begin + g)];
          const int32_t key = entry < 0 ? ~entry : entry;
          EXPECT_EQ(key % kGroupKeys, 0);
          EXPECT_TRUE(seen.insert({row, key / kGroupKeys}).second);
        }
      }
    }
    EXPECT_EQ(rows.size(), 250u);
    EXPECT_EQ(seen, cells_of(slices));
  }
}

TEST(GroupItems, MarkThoseThatThreeOthersFollowAndShareThoseOfEqualNeighbours) {
  const std::vector<AttnSlice> slices{AttnSlice::full({0, 32}, {32, 128}), AttnSlice::full({0, 32}, {160, 176})};
  const std::optional<GroupList> list = group_items(build_tile_list(slices, 48, 256, {16, 128}));
  ASSERT_TRUE(list.has_value());
  EXPECT_EQ(list->groups, (std::vector<int32_t>{~32, ~48, ~64, 80, 96, 112, 160}));
  EXPECT_EQ(list->items, (std::vector<GroupItem>{{0, 16, 0, 7}, {16, 32, 0, 7}, {32, 48, 7, 0}}));
}

TEST(GroupItems, NothingWhereRowsOfATileDifferOrGroupsAreNotWhole) {
  for (const AttnSlice& slice :
       {AttnSlice::causal({0, 64}, {0, 64}), AttnSlice::full({0, 24}, {0, 64}), AttnSlice::full({0, 64}, {8, 24}),
        AttnSlice::full({0, 64}, {0, 40})}) {
    EXPECT_FALSE(group_items(build_tile_list({{slice}}, 64, 64, {16, 128})).has_value());
  }
}

}  // namespace
}  // namespace tangram::schedule
