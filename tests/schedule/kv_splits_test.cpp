// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/kv_splits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "reference/cells.hpp"
#include "reference/mask_cases.hpp"
#include "reference/tile_runs.hpp"
#include "schedule/ready_order.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::schedule {
namespace {

/// What the kernel relies on in the runs of one part; adds what it shows to `seen`.
void check_runs(const TileList& list, const MaskTile& work_tile, reference::Cells& seen) {
  for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
    const TileRange& run = list.runs[static_cast<size_t>(r)];
    ASSERT_LT(run.k_begin, run.k_end);
    std::vector<int> hits(static_cast<size_t>(run.k_end - run.k_begin));
    for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) {
      const RowInterval keys = reference::interval_of(list, work_tile, run, row);
      for (int32_t key = keys.begin; key < keys.end; ++key) {
        ASSERT_TRUE(run.k_begin <= key && key < run.k_end);
        ++hits[static_cast<size_t>(key - run.k_begin)];
        seen.add({{row, row + 1}, {key, key + 1}});
      }
      for (int32_t key = run.full_begin; key < run.full_end; ++key) {
        ASSERT_TRUE(keys.begin <= key && key < keys.end) << "row " << row << " does not see unmasked key " << key;
      }
    }
    EXPECT_EQ(std::count(hits.begin(), hits.end(), 0), 0) << "a key of the run is seen by no row";
  }
}

/// Checks each tile: workspace rows that no other tile has, one block a part, and steps split evenly, in order.
void check_tiles(const TileList& whole, const PartList& parts, int64_t max_steps) {
  std::vector<int> owners(static_cast<size_t>(parts.num_rows));
  size_t num_parts = 0;
  for (const MaskTile& tile : whole.work_tiles) {
    const auto found = std::find_if(parts.tiles.begin(), parts.tiles.end(),
                                    [&](const TileParts& one) { return one.row_begin == tile.row_begin; });
    const TileParts of_tile =
        found == parts.tiles.end() ? TileParts{tile.row_begin, tile.row_end - tile.row_begin, -1, 1} : *found;
    ASSERT_EQ(of_tile.num_rows, tile.row_end - tile.row_begin);
    const int64_t steps = reference::steps_of(whole, tile);
    ASSERT_EQ(of_tile.num_parts, std::max<int64_t>((steps + max_steps - 1) / max_steps, 1));
    std::vector<std::pair<int32_t, int32_t>> keys;  // of the runs of all parts, in their order
    for (int32_t p = 0; p < of_tile.num_parts; ++p, ++num_parts) {
      const int32_t first_row = of_tile.first_row + p * (tile.row_end - tile.row_begin);
      size_t i = 0;
      while (i < parts.first_rows.size() &&
             (parts.first_rows[i] != first_row || parts.list.work_tiles[i].row_begin != tile.row_begin))
        ++i;
      ASSERT_LT(i, parts.first_rows.size());
      const MaskTile& work_tile = parts.list.work_tiles[i];
      ASSERT_EQ(work_tile.row_begin, tile.row_begin);
      ASSERT_EQ(work_tile.row_end, tile.row_end);
      for (int32_t k = 0; first_row >= 0 && k < work_tile.row_end - work_tile.row_begin; ++k) {
        ++owners[static_cast<size_t>(first_row + k)];
      }
      EXPECT_LE(reference::steps_of(parts.list, work_tile), max_steps);
      EXPECT_GE(reference::steps_of(parts.list, work_tile), steps / of_tile.num_parts);
      for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
        const TileRange& run = parts.list.runs[static_cast<size_t>(r)];
        const bool goes_on =
            r == work_tile.run_begin && !keys.empty() && keys.back().second == run.k_begin &&
            keys.back().second != whole.runs[static_cast<size_t>(tile.run_begin + keys.size() - 1)].k_end;
        if (goes_on) {
          keys.back().second = run.k_end;
        } else {
          keys.emplace_back(run.k_begin, run.k_end);
        }
      }
    }
    ASSERT_EQ(keys.size(), static_cast<size_t>(tile.run_end - tile.run_begin));
    for (size_t r = 0; r < keys.size(); ++r) {
      const TileRange& run = whole.runs[static_cast<size_t>(tile.run_begin) + r];
      EXPECT_EQ(keys[r], std::pair(run.k_begin, run.k_end));
    }
  }
  EXPECT_EQ(num_parts, parts.list.work_tiles.size());
  EXPECT_EQ(parts.first_rows.size(), parts.list.work_tiles.size());
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), parts.num_rows);
}

void expect_exact(const std::vector<AttnSlice>& slices, int64_t rows, int64_t columns, TileShape shape,
                  int64_t max_steps) {
  const TileList whole = build_tile_list(slices, rows, columns, shape);
  const PartList parts = cut_work_tiles(whole, max_steps);
  reference::Cells seen(rows, columns);
  int64_t last_steps = INT64_MAX;
  for (const MaskTile& work_tile : parts.list.work_tiles) {
    check_runs(parts.list, work_tile, seen);
    EXPECT_LE(reference::steps_of(parts.list, work_tile), last_steps) << "parts must come longest first";
    last_steps = reference::steps_of(parts.list, work_tile);
  }
  EXPECT_EQ(seen, reference::Cells(rows, columns, slices));
  check_tiles(whole, parts, max_steps);
}

TEST(ForwardParts, ShowEveryCellOnce) {
  const std::vector<AttnSlice> documents{AttnSlice::causal({0, 11}, {0, 11}), AttnSlice::causal({11, 30}, {11, 30}),
                                         AttnSlice::full({30, 40}, {30, 90})};
  for (int64_t max_steps = 1; max_steps < 8; ++max_steps) {
    expect_exact({AttnSlice::causal({0, 50}, {0, 90})}, 50, 90, {16, 16}, max_steps);
    expect_exact({AttnSlice::full({3, 20}, {5, 131})}, 50, 140, {16, 16}, max_steps);
    expect_exact({{{0, 60}, {0, 60}, -20, 0}}, 60, 60, {16, 8}, max_steps);
    expect_exact(documents, 45, 90, {16, 8}, max_steps);
    expect_exact({}, 45, 90, {16, 8}, max_steps);
  }
}

TEST(ForwardParts, ShowEveryCellOnceOfRandomMasks) {
  std::mt19937 rng(3);
  const auto draw = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  for (int round = 0; round < 300; ++round) {
    const int64_t rows = draw(1, 70), columns = draw(1, 150);
    std::vector<AttnSlice> slices;
    reference::Cells cells(rows, columns);
    for (int i = draw(0, 6); i > 0; --i) {
      const AttnSlice slice = reference::random_slice(rng, rows, columns);
      reference::Cells with = cells;
      with.add(slice);
      if (with.has_double()) continue;
      slices.push_back(slice);
      cells = with;
    }
    SCOPED_TRACE(testing::Message() << "round " << round);
    expect_exact(slices, rows, columns, {16, draw(0, 1) == 0 ? 8 : 16}, draw(1, 9));
    if (HasFailure()) return;
  }
}

constexpr GpuModel kGpu;
constexpr TileShape kTile{16, 128};  // 128 rows of 8 packed heads

AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv) {
  return {rows, keys, heads_q, heads_kv, 128, 128, DType::kBFloat16};
}

std::optional<PartList> split(const std::vector<AttnSlice>& slices, const AttnShape& shape, TileShape tile,
                              int64_t num_groups) {
  return split_work_tiles(build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, tile), shape, num_groups, kGpu);
}

TEST(ForwardParts, OneRowOfLongKeysOccupiesAllMultiprocessors) {
  for (const int64_t keys : {int64_t{16384}, int64_t{131072}, int64_t{1} << 20}) {
    const auto parts = split({AttnSlice::full({0, 1}, {0, keys})}, shape_of(1, keys, 64, 8), kTile, 8);
    ASSERT_TRUE(parts.has_value());
    const int64_t longest = reference::steps_of(parts->list, parts->list.work_tiles.front());
    EXPECT_LE(static_cast<double>(longest) * kGpu.multiprocessors, 1.25 * static_cast<double>(keys / 128 * 8));
  }
}

TEST(ForwardParts, OnlyTheLongestTilesAreCut) {
  // One tile sees 64 times as many keys as the others.
  const auto parts = split({AttnSlice::full({0, 16}, {0, 65536}), AttnSlice::full({16, 128}, {0, 1024})},
                           shape_of(128, 65536, 64, 8), kTile, 8);
  ASSERT_TRUE(parts.has_value());
  ASSERT_EQ(parts->tiles.size(), 1U);
  EXPECT_GT(parts->tiles[0].num_parts, 8);
}

TEST(ForwardParts, KeysThatAreThereComeBeforeThoseThatAreLate) {
  const std::vector<KeyReadyFlag> late = {{{32768, 65536}, 0}};
  const std::vector<AttnSlice> slices = {AttnSlice::causal({0, 128}, {0, 65536})};
  TileList tiles = build_tile_list(slices, 128, 65536, kTile);
  order_by_readiness(tiles, late, kGpu.multiprocessors);
  const auto parts = split_work_tiles(tiles, shape_of(128, 65536, 64, 8), 8, kGpu);
  ASSERT_TRUE(parts.has_value());
  std::vector<bool> waits;
  for (const MaskTile& work_tile : parts->list.work_tiles) {
    waits.push_back(parts->list.runs[static_cast<size_t>(work_tile.run_end - 1)].k_end > late[0].keys.begin);
  }
  EXPECT_TRUE(std::is_sorted(waits.begin(), waits.end()));
  EXPECT_GE(std::count(waits.begin(), waits.end(), false), std::ssize(waits) / 2 - 8);
}

TEST(ForwardParts, TheLongestWorkTileNeedNotComeFirst) {
  const std::vector<AttnSlice> slices = {AttnSlice::full({0, 16}, {0, 65536}), AttnSlice::full({16, 128}, {0, 1024})};
  TileList tiles = build_tile_list(slices, 128, 65536, kTile);
  std::reverse(tiles.work_tiles.begin(), tiles.work_tiles.end());
  const auto parts = split_work_tiles(tiles, shape_of(128, 65536, 64, 8), 8, kGpu);
  ASSERT_TRUE(parts.has_value());
  ASSERT_EQ(parts->tiles.size(), 1U);
  EXPECT_GT(parts->tiles[0].num_parts, 8);
}

TEST(ForwardParts, OfManyWorkTilesOnlyTheLastScheduledAreCut) {
  // 86 tiles of 192 rows, 688 work tiles on 132 multiprocessors: 5.2 waves.
  AttnShape shape = shape_of(2048, 2048, 64, 8);
  shape.head_dim = shape.head_dim_v = 64;
  const auto parts = split({AttnSlice::full({0, 2048}, {0, 2048})}, shape, {24, 96}, 8);
  ASSERT_TRUE(parts.has_value());
  EXPECT_GT(parts->tiles.size(), 0U);
  EXPECT_LT(parts->tiles.size(), 10U);
  for (size_t i = 0; i + parts->tiles.size() < 86; ++i) EXPECT_EQ(parts->first_rows[i], -1) << "a whole tile";
}

TEST(ForwardParts, AFewWorkTilesTooManyForTheLastWaveAreCut) {
  // 512 tiles of 16 rows, 4,096 work tiles on 132 multiprocessors: 31 waves and four work tiles of 64 steps.
  const auto full = split({AttnSlice::full({0, 8192}, {0, 8192})}, shape_of(8192, 8192, 64, 8), kTile, 8);
  ASSERT_TRUE(full.has_value());
  EXPECT_GT(full->tiles.size(), 0U);
  EXPECT_LE(full->tiles.size(), 17U) << "no more than a wave";
  EXPECT_FALSE(split({AttnSlice::full({0, 8448}, {0, 8192})}, shape_of(8448, 8192, 64, 8), kTile, 8)) << "32 waves";
}

TEST(ForwardParts, TilesStayWholeWhereSplittingDoesNotPay) {
  EXPECT_FALSE(split({}, shape_of(16, 65536, 64, 8), kTile, 8)) << "nothing to cut";
  EXPECT_FALSE(split({}, shape_of(0, 65536, 64, 8), kTile, 8)) << "no tiles";
  EXPECT_FALSE(split({AttnSlice::full({0, 16}, {0, 1920})}, shape_of(16, 1920, 64, 8), kTile, 8)) << "short keys";
  EXPECT_FALSE(split({AttnSlice::full({0, 256}, {0, 8192})}, shape_of(256, 8192, 64, 8), kTile, 8))
      << "128 equal items on 132 multiprocessors";
  EXPECT_FALSE(split({AttnSlice::causal({0, 8192}, {0, 8192})}, shape_of(8192, 8192, 64, 8), kTile, 8)) << "many tiles";
}

TEST(ForwardParts, MasksOfTheBenchmarksKeepWholeTiles) {
  int num_cases = 0;
  for (const reference::MaskCase& one : reference::load_mask_cases("masks.json")) {
    if (one.seqlen > 4096) continue;  // longer ones have more tiles
    EXPECT_FALSE(split(one.slices, shape_of(one.seqlen, one.seqlen, 64, 8), kTile, 8)) << one.name;
    EXPECT_FALSE(split(one.slices, shape_of(one.seqlen, one.seqlen, 8, 8), {128, 128}, 8)) << one.name;
    ++num_cases;
  }
  EXPECT_GE(num_cases, 12);
}

}  // namespace
}  // namespace tangram::schedule
