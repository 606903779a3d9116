// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/group_work_tiles.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

using Cells = std::set<std::pair<int64_t, int64_t>>;  // of rows and keys

/// Blocks of `block` rows and keys at random, of which every third row of blocks has none; with `causal` those on the
/// diagonal are, and none is above.
std::vector<AttnSlice> random_blocks(int64_t rows, int64_t keys, int64_t block, bool causal, std::mt19937& random) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < rows; q += block) {
    const int64_t end = std::min(q + block, rows);
    for (int64_t k = 0; k < (causal ? q : keys) && q / block % 3 != 1; k += block) {
      if (random() % 3 == 0) slices.push_back(AttnSlice::full({q, end}, {k, k + block}));
    }
    if (causal && end == q + block) slices.push_back(AttnSlice::causal({q, end}, {q, end}));
  }
  return slices;
}

Cells cells_of(const std::vector<AttnSlice>& slices) {
  Cells cells;
  for (const AttnSlice& slice : slices) {
    for (int64_t q = slice.q_range.begin; q < slice.q_range.end; ++q) {
      for (int64_t k = slice.k_range.begin; k < slice.k_range.end; ++k) {
        if (slice.min_diag <= k - q && k - q <= slice.max_diag) cells.insert({q, k});
      }
    }
  }
  return cells;
}

/// Adds what a work tile sees, `pack` packed rows being a row.
void add_cells(Cells& cells, const GroupList& list, const GroupWorkTile& work_tile, int32_t pack) {
  for (int32_t g = 0; g < work_tile.num_groups; ++g) {
    const int32_t entry = list.groups[static_cast<size_t>(work_tile.group_begin + g)];
    const int32_t first = entry < 0 ? ~entry : entry, in_masked = g - (work_tile.num_groups - work_tile.num_masked);
    EXPECT_EQ(first % kGroupKeys, 0);
    for (int32_t r = 0; r < (work_tile.row_end - work_tile.row_begin) * pack; ++r) {
      for (int32_t key = 0; key < kGroupKeys; ++key) {
        const bool visible =
            in_masked < 0 ||
            (list.masks[static_cast<size_t>(work_tile.mask_begin + in_masked)].keys[key].words[r / 32] >> r % 32 & 1);
        const std::pair<int64_t, int64_t> cell(work_tile.row_begin + r / pack, first + key);
        if (!visible) continue;
        EXPECT_EQ(cells.insert(cell).second, r % pack == 0);
      }
    }
  }
}

TEST(GroupWorkTiles, ListWhatEachRowSeesLongestFirst) {
  std::mt19937 random(3);
  for (const int64_t block : {16, 32, 64, 128}) {
    for (const bool causal : {false, true}) {
      const std::vector<AttnSlice> slices = random_blocks(250, 512, block, causal, random);
      const std::optional<GroupList> list = group_work_tiles(build_tile_list(slices, 250, 512, {16, 128}));
      ASSERT_TRUE(list.has_value());
      Cells seen;
      std::set<int64_t> rows;
      int32_t most = INT32_MAX;
      for (const GroupWorkTile& work_tile : list->work_tiles) {
        EXPECT_LE(work_tile.num_groups, most);
        most = work_tile.num_groups;
        for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) EXPECT_TRUE(rows.insert(row).second);
        add_cells(seen, *list, work_tile, 8);
      }
      EXPECT_EQ(rows.size(), 250u);
      EXPECT_EQ(seen, cells_of(slices));
      EXPECT_EQ(list->masks.empty(), !causal);
    }
  }
}

TEST(GroupWorkTiles, MarkThoseThatThreeOthersFollowAndShareThoseOfEqualNeighbours) {
  const std::vector<AttnSlice> slices{AttnSlice::full({0, 32}, {32, 128}), AttnSlice::full({0, 32}, {160, 176})};
  const std::optional<GroupList> list = group_work_tiles(build_tile_list(slices, 48, 256, {16, 128}));
  ASSERT_TRUE(list.has_value());
  EXPECT_EQ(list->groups, (std::vector<int32_t>{~32, ~48, ~64, 80, 96, 112, 160}));
  EXPECT_EQ(list->work_tiles,
            (std::vector<GroupWorkTile>{
                {0, 16, 0, 7, 0, 0, -1, 0}, {16, 32, 0, 7, 0, 0, -1, 0}, {32, 48, 7, 0, 0, 0, -1, 0}}));
}

TEST(GroupWorkTiles, OfSeveralMasksAreThoseOfEach) {
  std::mt19937 random(5);
  std::vector<GroupList> lists;
  for (const int64_t block : {16, 64}) {
    lists.push_back(
        *group_work_tiles(build_tile_list(random_blocks(128, 128, block, true, random), 128, 128, {16, 128})));
  }
  const GroupList joined = join_groups(lists, 2);
  ASSERT_EQ(joined.work_tiles.size(), 4 * lists[0].work_tiles.size());
  for (size_t i = 0; i < joined.work_tiles.size(); ++i) {
    const auto head_group = static_cast<int32_t>(i / lists[0].work_tiles.size());
    EXPECT_EQ(joined.work_tiles[i].head_group, head_group);
    Cells got, wanted;
    add_cells(got, joined, joined.work_tiles[i], 8);
    const GroupList& list = lists[static_cast<size_t>(head_group / 2)];
    add_cells(wanted, list, list.work_tiles[i % lists[0].work_tiles.size()], 8);
    EXPECT_EQ(got, wanted);
  }
}

TEST(GroupWorkTiles, NothingWhereGroupsAreNotWholeOrMaskedTooOftenOrRowsSeeNothing) {
  const std::vector<AttnSlice> others[] = {{AttnSlice::full({0, 24}, {0, 64})},
                                           {AttnSlice::full({0, 64}, {8, 24})},
                                           {AttnSlice::full({0, 64}, {0, 40})},
                                           {{{0, 64}, {0, 64}, -20, 20}}};
  for (const std::vector<AttnSlice>& slices : others) {
    EXPECT_FALSE(group_work_tiles(build_tile_list(slices, 64, 64, {16, 128})).has_value());
  }
  std::vector<AttnSlice> single;  // a tile sees eight blocks, each with one in eight of its rows
  for (int64_t q = 0; q < 128; q += 16) single.push_back(AttnSlice::full({q, q + 16}, {q, q + 16}));
  EXPECT_FALSE(group_work_tiles(build_tile_list(single, 128, 128, {128, 128})).has_value());
}

}  // namespace
}  // namespace tangram::schedule
