// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/gather_runs.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "schedule/tile_list.hpp"
#include "support/sample.hpp"

namespace tangram::schedule {
namespace {

/// Keys of a run in the order in which a kernel multiplies them.
std::vector<int32_t> keys_of(const GatheredList& list, const TileRange& run) {
  std::vector<int32_t> keys;
  for (int32_t k = run.k_begin; k < run.k_end; ++k) {
    if (run.group_begin < 0) {
      keys.push_back(k);
      continue;
    }
    const int32_t entry = list.groups[static_cast<size_t>(run.group_begin + k / kGroupKeys)];
    keys.push_back((entry < 0 ? ~entry : entry) + k % kGroupKeys);
  }
  return keys;
}

std::set<std::pair<int32_t, int32_t>> cells(const MaskTile& work_tile, const TileRange& run,
                                            const std::vector<int32_t>& keys,
                                            const std::vector<RowInterval>& intervals) {
  std::set<std::pair<int32_t, int32_t>> result;
  for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) {
    RowInterval seen{0, 0};
    if (run.interval_begin >= 0) {
      seen = intervals[static_cast<size_t>(run.interval_begin + row - work_tile.row_begin)];
    } else if (run.row_begin <= row && row < run.row_end) {
      seen = {std::max(run.slice_k_begin, row + run.min_diag), std::min(run.slice_k_end, row + run.max_diag + 1)};
    }
    for (int32_t k = run.k_begin; k < run.k_end; ++k) {
      if (seen.begin <= k && k < seen.end) result.insert({row, keys[static_cast<size_t>(k - run.k_begin)]});
    }
  }
  return result;
}

int64_t steps_of(const MaskTile& work_tile, const std::vector<TileRange>& runs, int64_t block_n) {
  int64_t steps = 0;
  for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
    const TileRange& run = runs[static_cast<size_t>(r)];
    steps += (run.k_end - run.k_begin + block_n - 1) / block_n;
  }
  return steps;
}

/// Blocks of `block` rows and keys, each visible with probability `share`, moved by `shift` keys.
std::vector<AttnSlice> random_blocks(int64_t rows, int64_t keys, int64_t block, double share, int64_t shift,
                                     std::mt19937& random) {
  std::vector<AttnSlice> slices;
  std::bernoulli_distribution visible(share);
  for (int64_t q = 0; q < rows; q += block) {
    for (int64_t k = shift; k + block <= keys; k += block) {
      if (visible(random)) slices.push_back(AttnSlice::full({q, std::min(q + block, rows)}, {k, k + block}));
    }
  }
  return slices;
}

TEST(GatherRuns, KeepsEveryCellAndOrder) {
  std::mt19937 random(3);
  int gathered = 0;
  const int turns = support::rounds(300, 40);
  for (int turn = 0; turn < turns; ++turn) {
    const int64_t block = int64_t{16} << random() % 3, rows = 16 + static_cast<int64_t>(random() % 200);
    const int64_t keys = 300 + static_cast<int64_t>(random() % 300);
    std::vector<AttnSlice> slices =
        random_blocks(rows, keys, block, 0.1 + 0.2 * (turn % 4), static_cast<int64_t>(random() % 20), random);
    slices.push_back(AttnSlice::causal({0, rows}, {keys, keys + rows}));
    const TileList tiles = build_tile_list(slices, rows, keys + rows, {16, turn % 2 ? 128 : 96});
    const std::optional<GatheredList> list = gather_runs(tiles);
    if (!list) continue;
    ++gathered;
    ASSERT_EQ(list->work_tiles.size(), tiles.work_tiles.size());
    std::set<std::pair<int32_t, int32_t>> before, after;
    size_t in_runs = 0;
    for (const MaskTile& work_tile : tiles.work_tiles) {
      for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
        const TileRange& run = tiles.runs[static_cast<size_t>(r)];
        before.merge(cells(work_tile, run, keys_of(*list, run), tiles.intervals));
      }
    }
    int64_t last = INT64_MAX;
    for (const MaskTile& work_tile : list->work_tiles) {
      EXPECT_LE(steps_of(work_tile, list->runs, tiles.shape.block_n), last) << "longest first";
      last = steps_of(work_tile, list->runs, tiles.shape.block_n);
      for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
        const TileRange& run = list->runs[static_cast<size_t>(r)];
        std::set<std::pair<int32_t, int32_t>> seen = cells(work_tile, run, keys_of(*list, run), tiles.intervals);
        in_runs += seen.size();
        after.merge(seen);
      }
    }
    EXPECT_EQ(before, after);
    EXPECT_EQ(in_runs, after.size()) << "a cell in two runs";
    for (size_t i = 0; i < list->groups.size(); ++i) {
      if (list->groups[i] >= 0) continue;
      for (size_t j = 1; j < 4; ++j) {
        const int32_t entry = list->groups.at(i + j);
        EXPECT_EQ(entry < 0 ? ~entry : entry, ~list->groups[i] + static_cast<int32_t>(j) * kGroupKeys);
      }
    }
  }
  EXPECT_GT(gathered, turns / 4);
}

TEST(GatherRuns, StepsAreFull) {
  // Every second block of 64 keys: two blocks a step, which were two steps.
  std::vector<AttnSlice> slices;
  for (int64_t k = 0; k < 2048; k += 128) slices.push_back(AttnSlice::full({0, 64}, {k, k + 64}));
  const TileList tiles = build_tile_list(slices, 64, 2048, {16, 128});
  const std::optional<GatheredList> list = gather_runs(tiles);
  ASSERT_TRUE(list.has_value());
  for (const MaskTile& work_tile : tiles.work_tiles) EXPECT_EQ(steps_of(work_tile, tiles.runs, 128), 16);
  for (const MaskTile& work_tile : list->work_tiles) EXPECT_EQ(steps_of(work_tile, list->runs, 128), 8);
  EXPECT_EQ(list->groups.size(), 64u) << "the four tiles share their groups";
}

TEST(GatherRuns, LeavesMasksAloneThatGainNothing) {
  const TileShape shape{16, 128};
  EXPECT_FALSE(gather_runs(build_tile_list(std::vector{AttnSlice::causal({0, 512}, {0, 512})}, 512, 512, shape)));
  EXPECT_FALSE(gather_runs(build_tile_list(std::vector{AttnSlice::full({0, 512}, {0, 256})}, 512, 512, shape)));
  // Whole steps already.
  const std::vector<AttnSlice> blocks{AttnSlice::full({0, 16}, {0, 128}), AttnSlice::full({0, 16}, {256, 384})};
  EXPECT_FALSE(gather_runs(build_tile_list(blocks, 16, 512, shape)));
  // Not whole groups.
  const std::vector<AttnSlice> ragged{AttnSlice::full({0, 16}, {0, 20}), AttnSlice::full({0, 16}, {256, 280})};
  EXPECT_FALSE(gather_runs(build_tile_list(ragged, 16, 512, shape)));
  EXPECT_FALSE(gather_runs(build_tile_list(std::vector<AttnSlice>{}, 16, 16, shape)));
}

TEST(GatherRuns, KnowsTilesThatCutBlocks) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < 1024; q += 128) {
    for (int64_t k = q % 256; k < 2048; k += 512) slices.push_back(AttnSlice::full({q, q + 128}, {k, k + 128}));
  }
  const TileList cut = build_tile_list(slices, 1024, 2048, {24, 128});
  EXPECT_TRUE(cuts_blocks(cut));
  EXPECT_FALSE(may_gather(cut));
  const TileList whole = build_tile_list(slices, 1024, 2048, {.block_m = 24, .block_n = 128, .anew_every = 128});
  EXPECT_FALSE(cuts_blocks(whole));
  const GatheredList same = gather_none(whole);
  EXPECT_EQ(same.work_tiles, whole.work_tiles);
  EXPECT_EQ(same.runs, whole.runs);
  EXPECT_TRUE(same.groups.empty());
  TileList by_readiness = cut;
  std::swap(by_readiness.work_tiles.front(), by_readiness.work_tiles.back());
  by_readiness.work_tiles.front().run_end = by_readiness.work_tiles.front().run_begin;
  EXPECT_FALSE(cuts_blocks(by_readiness));
  EXPECT_FALSE(cuts_blocks(build_tile_list({}, 1024, 2048, {24, 128})));
}

TEST(GatherRuns, KeepsAnOrderThatIsNotByLength) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < 64; q += 16)
    for (int64_t k = 0; k < 512 + q * 8; k += 64) slices.push_back(AttnSlice::full({q, q + 16}, {k, k + 32}));
  TileList tiles = build_tile_list(slices, 64, 1024, {16, 128});
  std::swap(tiles.work_tiles[0], tiles.work_tiles[2]);  // as arrival of keys may want it
  const std::optional<GatheredList> list = gather_runs(tiles);
  ASSERT_TRUE(list.has_value());
  for (size_t i = 0; i < tiles.work_tiles.size(); ++i)
    EXPECT_EQ(list->work_tiles[i].row_begin, tiles.work_tiles[i].row_begin);
}

}  // namespace
}  // namespace tangram::schedule
