// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/ready_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "reference/cells.hpp"
#include "reference/tile_runs.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/slice.hpp"

namespace tangram::schedule {
namespace {

/// The cells of a list, each once; keys outside their run or masked keys called full fail.
reference::Cells cells_of(const TileList& list) {
  reference::Cells seen(list.seqlen_q, list.seqlen_k);
  for (const MaskTile& work_tile : list.work_tiles) {
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      const TileRange& run = list.runs[static_cast<size_t>(r)];
      EXPECT_LT(run.k_begin, run.k_end);
      for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) {
        const RowInterval keys = reference::interval_of(list, work_tile, run, row);
        for (int32_t key = keys.begin; key < keys.end; ++key) {
          EXPECT_TRUE(run.k_begin <= key && key < run.k_end);
          seen.add({{row, row + 1}, {key, key + 1}});
        }
        for (int32_t key = run.full_begin; key < run.full_end; ++key) {
          EXPECT_TRUE(keys.begin <= key && key < keys.end);
        }
      }
    }
  }
  return seen;
}

/// Turn of the latest key of a run.
size_t turn_of(const TileRange& run, const std::vector<KeyReadyFlag>& ready_flags) {
  size_t turn = 0;
  for (size_t i = 0; i < ready_flags.size(); ++i) {
    if (!intersect(ready_flags[i].keys, {run.k_begin, run.k_end}).empty()) turn = i + 1;
  }
  return turn;
}

int64_t steps_of(const TileList& list) {
  int64_t steps = 0;
  for (const MaskTile& work_tile : list.work_tiles) steps += reference::steps_of(list, work_tile);
  return steps;
}

TEST(ReadyOrder, CutsLieBetweenTiles) {
  TileList list = build_tile_list(std::vector<AttnSlice>{AttnSlice::full({0, 16}, {8, 100})}, 16, 100, {16, 16});
  // Tiles begin at 8, 24, 40, 56, 72 and 88. Of the second the last keys come third, of the fifth second.
  order_by_readiness(list, std::vector<KeyReadyFlag>{{{90, 100}, 0}, {{60, 80}, 1}, {{30, 50}, 2}}, 1);
  ASSERT_EQ(list.work_tiles.size(), 1U);
  std::vector<Range> runs;
  for (int32_t r = list.work_tiles[0].run_begin; r < list.work_tiles[0].run_end; ++r) {
    runs.push_back({list.runs[static_cast<size_t>(r)].k_begin, list.runs[static_cast<size_t>(r)].k_end});
  }
  EXPECT_EQ(runs, (std::vector<Range>{{8, 24}, {88, 100}, {56, 88}, {24, 56}}));
}

TEST(ReadyOrder, FirstWorkTilesComputeWhatIsThereFirst) {
  TileList list = build_tile_list(std::vector<AttnSlice>{AttnSlice::full({0, 64}, {0, 96})}, 64, 96, {16, 16});
  const std::vector<KeyReadyFlag> ready_flags = {{{64, 96}, 1}, {{0, 32}, 0}};  // 32 to 64 are there
  order_by_readiness(list, ready_flags, 2);
  ASSERT_EQ(list.work_tiles.size(), 4U);
  for (size_t i = 0; i < 2; ++i) {
    const MaskTile& work_tile = list.work_tiles[i];
    ASSERT_EQ(work_tile.run_end - work_tile.run_begin, 3);
    const TileRange* runs = list.runs.data() + work_tile.run_begin;
    EXPECT_EQ(runs[0].k_begin, 32);
    EXPECT_EQ(runs[0].full_end, 64);
    EXPECT_EQ(runs[1].k_begin, 64);
    EXPECT_EQ(runs[2].k_begin, 0);
    EXPECT_EQ(runs[2].k_end, 32);
  }
  EXPECT_EQ(list.work_tiles[2].run_end - list.work_tiles[2].run_begin, 1);
}

TEST(ReadyOrder, WorkTilesWithMoreKeysPresentMoveAhead) {
  // Longest first, the last rows lead; but their keys are late, and those of the second tile are all there.
  TileList list = build_tile_list(std::vector<AttnSlice>{AttnSlice::causal({0, 64}, {0, 64})}, 64, 64, {16, 16});
  ASSERT_EQ(list.work_tiles[0].row_begin, 48);
  order_by_readiness(list, std::vector<KeyReadyFlag>{{{32, 64}, 0}}, 1);
  EXPECT_EQ(list.work_tiles[0].row_begin, 48) << "a tie keeps the longest first";
  EXPECT_EQ(list.work_tiles[0].run_end - list.work_tiles[0].run_begin, 2);
  list = build_tile_list(std::vector<AttnSlice>{AttnSlice::causal({0, 64}, {0, 64})}, 64, 64, {16, 16});
  order_by_readiness(list, std::vector<KeyReadyFlag>{{{0, 48}, 0}}, 1);
  EXPECT_EQ(list.work_tiles[0].row_begin, 48) << "the only one with keys that are there";
  const std::vector<int32_t> rest = {list.work_tiles[1].row_begin, list.work_tiles[2].row_begin,
                                     list.work_tiles[3].row_begin};
  EXPECT_EQ(rest, (std::vector<int32_t>{32, 16, 0})) << "the others stay longest first";
}

TEST(ReadyOrder, KeepsTheMaskWhateverArrivesWhen) {
  std::mt19937 rng(3);
  const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  for (int round = 0; round < 300; ++round) {
    const int64_t rows = draw(1, 70), columns = draw(1, 90);
    reference::Cells expected(rows, columns);
    std::vector<AttnSlice> slices;
    for (int64_t i = draw(0, 6); i > 0; --i) {
      const int64_t q = draw(0, rows - 1), k = draw(0, columns - 1);
      const AttnSlice slice =
          AttnSlice::from_type(static_cast<MaskType>(draw(0, 3)), {q, draw(q + 1, rows)}, {k, draw(k + 1, columns)});
      if (std::ranges::any_of(slices, [&](const AttnSlice& other) { return area(intersect(other, slice)) > 0; })) {
        continue;
      }
      slices.push_back(slice);
      expected.add(slice);
    }
    TileList list = build_tile_list(slices, rows, columns, {16, 16});
    std::vector<KeyReadyFlag> ready_flags;
    for (int64_t key = draw(0, columns); key < columns;) {
      const int64_t end = draw(key + 1, columns);
      ready_flags.push_back({{key, end}, static_cast<int32_t>(ready_flags.size())});
      key = end + draw(0, 10);
    }
    std::shuffle(ready_flags.begin(), ready_flags.end(), rng);
    const size_t num_work_tiles = list.work_tiles.size();
    const int64_t num_steps = steps_of(list);
    const int64_t first_wave = draw(0, 6);
    order_by_readiness(list, ready_flags, first_wave);
    ASSERT_EQ(list.work_tiles.size(), num_work_tiles);
    EXPECT_EQ(cells_of(list), expected);
    EXPECT_EQ(steps_of(list), num_steps);
    for (size_t i = 0; i < std::min(num_work_tiles, static_cast<size_t>(first_wave)); ++i) {
      for (int32_t r = list.work_tiles[i].run_begin + 1; r < list.work_tiles[i].run_end; ++r) {
        EXPECT_LE(turn_of(list.runs[static_cast<size_t>(r) - 1], ready_flags),
                  turn_of(list.runs[static_cast<size_t>(r)], ready_flags));
      }
    }
  }
}

}  // namespace
}  // namespace tangram::schedule
