// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/tile_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "reference/cells.hpp"
#include "reference/tile_runs.hpp"
#include "tangram/error.hpp"
#include "tangram/mask.hpp"
#include "tangram/slice.hpp"

namespace tangram::schedule {
namespace {

/// Checks all that the kernels rely on, and that the list shows exactly the cells of `slices`.
void expect_exact(const std::vector<AttnSlice>& slices, int64_t rows, int64_t columns, TileShape shape) {
  const reference::Cells expected(rows, columns, slices);
  const TileList list = build_tile_list(slices, rows, columns, shape);
  EXPECT_EQ(list.shape, shape);
  reference::Cells seen(rows, columns);
  std::vector<int> owners(static_cast<size_t>(rows));
  int64_t last_cost = INT64_MAX;
  for (const MaskTile& work_tile : list.work_tiles) {
    ASSERT_LT(work_tile.row_begin, work_tile.row_end);
    ASSERT_LE(work_tile.row_end - work_tile.row_begin, shape.block_m);
    if (!shape.follows_mask) {
      const int64_t anew = shape.anew_every > 0 ? work_tile.row_begin / shape.anew_every * shape.anew_every : 0;
      const int64_t next = shape.anew_every > 0 ? anew + shape.anew_every : list.seqlen_q;
      ASSERT_EQ((work_tile.row_begin - anew) % shape.block_m, 0);
      ASSERT_EQ(work_tile.row_end, std::min<int64_t>({work_tile.row_begin + shape.block_m, next, list.seqlen_q}));
    }
    int64_t cost = 0;
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      const TileRange& run = list.runs[static_cast<size_t>(r)];
      ASSERT_LE(0, run.k_begin);
      ASSERT_LT(run.k_begin, run.k_end);
      ASSERT_LE(run.k_end, columns);
      cost += (run.k_end - run.k_begin + shape.block_n - 1) / shape.block_n;
      std::vector<int> hits(static_cast<size_t>(run.k_end - run.k_begin));
      for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) {
        const RowInterval keys = reference::interval_of(list, work_tile, run, row);
        for (int32_t key = keys.begin; key < keys.end; ++key) {
          ASSERT_GE(key, run.k_begin);
          ASSERT_LT(key, run.k_end);
          ++hits[static_cast<size_t>(key - run.k_begin)];
          seen.add({{row, row + 1}, {key, key + 1}});
        }
        for (int32_t key = run.full_begin; key < run.full_end; ++key) {
          ASSERT_TRUE(keys.begin <= key && key < keys.end) << "row " << row << " does not see unmasked key " << key;
        }
      }
      EXPECT_EQ(std::count(hits.begin(), hits.end(), 0), 0) << "a key of the run is seen by no row";
    }
    for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) ++owners[static_cast<size_t>(row)];
    EXPECT_LE(cost, last_cost) << "items must come longest first";
    last_cost = cost;
  }
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), rows) << "each row must belong to one item";
  ASSERT_EQ(list.key_tiles.empty(), !shape.follows_mask);
  EXPECT_EQ(list.key_tiles.empty() ? 0 : list.key_tiles.front(), 0);
  for (size_t i = 0; i < list.key_tiles.size(); ++i) {
    if (i + 1 == list.key_tiles.size()) {
      EXPECT_EQ(list.key_tiles.back(), columns);
      break;
    }
    EXPECT_LT(list.key_tiles[i], list.key_tiles[i + 1]);
    EXPECT_LE(list.key_tiles[i + 1] - list.key_tiles[i], shape.block_n);
  }
  EXPECT_EQ(seen, expected);
}

TEST(TileList, CausalHasOneRunATileWithAnUnmaskedPart) {
  const std::vector<AttnSlice> slices{AttnSlice::causal({0, 64}, {0, 64})};
  const TileList list = build_tile_list(slices, 64, 64, {16, 16});
  ASSERT_EQ(list.work_tiles.size(), 4U);
  EXPECT_EQ(list.work_tiles[0].row_begin, 48);
  const TileRange& run = list.runs[static_cast<size_t>(list.work_tiles[0].run_begin)];
  EXPECT_EQ(run.k_begin, 0);
  EXPECT_EQ(run.k_end, 64);
  EXPECT_EQ(run.full_end, 49);
  EXPECT_TRUE(list.intervals.empty());
  expect_exact(slices, 64, 64, {16, 16});
}

TEST(TileList, ShortDocumentsShareOneRun) {
  std::vector<AttnSlice> slices;
  for (int64_t doc = 0; doc < 12; ++doc) {
    slices.push_back(AttnSlice::causal({doc * 10, doc * 10 + 10}, {doc * 10, doc * 10 + 10}));
  }
  const TileList list = build_tile_list(slices, 120, 120, {128, 128});
  ASSERT_EQ(list.work_tiles.size(), 1U);
  EXPECT_EQ(list.work_tiles[0].run_end - list.work_tiles[0].run_begin, 1);
  EXPECT_EQ(list.intervals.size(), 120U);
  expect_exact(slices, 120, 120, {128, 128});
}

TEST(TileList, GapsBetweenKeysMakeRuns) {
  const std::vector<AttnSlice> slices{AttnSlice::full({0, 8}, {0, 10}), AttnSlice::full({8, 16}, {50, 60})};
  EXPECT_EQ(build_tile_list(slices, 16, 60, {16, 16}).runs.size(), 2U);
  expect_exact(slices, 16, 60, {16, 16});
}

TEST(TileList, RowsWithoutKeysHaveWorkTilesWithoutRuns) {
  const TileList list = build_tile_list({}, 40, 40, {16, 16});
  ASSERT_EQ(list.work_tiles.size(), 3U);
  for (const MaskTile& work_tile : list.work_tiles) EXPECT_EQ(work_tile.run_begin, work_tile.run_end);
  expect_exact({}, 40, 40, {16, 16});
}

TEST(TileList, EmptySequences) {
  EXPECT_TRUE(build_tile_list({}, 0, 10, {16, 16}).work_tiles.empty());
  EXPECT_EQ(build_tile_list({}, 10, 0, {16, 16}).work_tiles.size(), 1U);
}

TEST(TileList, RandomSliceSetsShowExactlyTheirCells) {
  std::mt19937 rng(20);
  for (int round = 0; round < 500; ++round) {
    const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
    const int64_t rows = draw(1, 70), columns = draw(1, 90);
    reference::Cells covered(rows, columns);
    std::vector<AttnSlice> slices;
    for (int64_t i = draw(0, 8); i > 0; --i) {
      // Keep a slice only if it covers no cell twice, as validated masks do.
      const AttnSlice slice = reference::random_slice(rng, rows, columns);
      reference::Cells both = covered;
      both.add(slice);
      if (both.has_double()) continue;
      covered = both;
      slices.push_back(slice);
    }
    const TileShape shape{static_cast<int>(draw(1, 40)), static_cast<int>(draw(1, 40)), draw(0, 1) == 1};
    SCOPED_TRACE(testing::Message() << "round " << round);
    expect_exact(slices, rows, columns, shape);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Rows of a block see the same blocks, in whatever tiles: these are listed together.
TEST(TileList, BlocksShowExactlyTheirCells) {
  std::mt19937 rng(22);
  for (int round = 0; round < 200; ++round) {
    const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
    const int64_t block = draw(4, 20), rows = draw(1, 80), columns = draw(1, 90);
    std::vector<AttnSlice> slices;
    for (int64_t q = 0; q < rows; q += block) {
      for (int64_t k = 0; k < columns; k += block) {
        if (draw(0, 2) != 0) continue;
        const Range queries{q, std::min(q + block, rows)}, keys{k, std::min(k + block, columns)};
        slices.push_back(draw(0, 15) == 0 ? AttnSlice::causal(queries, keys) : AttnSlice::full(queries, keys));
      }
    }
    if (draw(0, 1) == 0) slices = merge_touching(std::move(slices));
    const TileShape shape{static_cast<int>(draw(1, 24)), static_cast<int>(draw(1, 40)), draw(0, 1) == 1};
    SCOPED_TRACE(testing::Message() << "round " << round);
    expect_exact(slices, rows, columns, shape);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

/// FNV-1a over all that kernels read.
uint64_t hash_of(uint64_t hash, const TileList& list) {
  const auto add = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
    hash ^= hash >> 29;
  };
  for (const int32_t begin : list.key_tiles) add(begin);
  for (const MaskTile& work_tile : list.work_tiles) {
    for (const int32_t value : {work_tile.row_begin, work_tile.row_end, work_tile.run_begin, work_tile.run_end})
      add(value);
  }
  for (const TileRange& run : list.runs) {
    for (const int32_t value : {run.k_begin, run.k_end, run.full_begin, run.full_end, run.row_begin, run.row_end,
                                run.slice_k_begin, run.slice_k_end, run.min_diag, run.max_diag, run.interval_begin}) {
      add(value);
    }
  }
  for (const RowInterval& keys : list.intervals) {
    add(keys.begin);
    add(keys.end);
  }
  return hash;
}

// Which runs slices are packed into, and in what order work tiles and runs come, decides what kernels add up in what
// order. The number is that of the first builder, which was as simple as it could be.
TEST(TileList, ListsAreThoseThatWereRecorded) {
  std::mt19937 rng(22);
  const auto draw = [&rng](int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  uint64_t hash = 0xcbf29ce484222325;
  for (int round = 0; round < 10000; ++round) {
    const int64_t rows = draw(1, 300), columns = draw(1, 300);
    const int64_t longest = draw(0, 2) == 0 ? 300 : draw(2, 40);
    std::vector<AttnSlice> slices;
    int64_t document = 0;  // where the next one begins
    for (int64_t tries = draw(0, 24); tries > 0; --tries) {
      const int64_t q_rows = draw(1, longest), k_rows = draw(1, longest), type = draw(0, 3);
      Range q{document, std::min({rows, columns, document + q_rows})}, k = q;
      document = q.end;
      if (round % 3 != 0) {  // anywhere
        q.begin = draw(0, rows - 1);
        k.begin = draw(0, columns - 1);
        q.end = std::min(rows, q.begin + q_rows);
        k.end = std::min(columns, k.begin + k_rows);
      }
      slices.push_back(AttnSlice::from_type(static_cast<MaskType>(type), q, k));
      if (find_overlap(slices).first >= 0) slices.pop_back();
    }
    const int block_m = static_cast<int>(draw(1, 100)), block_n = static_cast<int>(draw(1, 100));
    const TileShape shape{block_m, block_n, draw(0, 1) == 1};
    hash = hash_of(hash, build_tile_list(slices, rows, columns, shape));
    const Mask mask(rows, columns, slices);
    hash = hash_of(hash, build_tile_list(mask.slices(), rows, columns, shape));
  }
  EXPECT_EQ(hash, 15156186677263290600U);
}

TEST(TileList, FollowsDocumentsWhereThatSavesTiles) {
  std::vector<AttnSlice> documents;
  for (const Range rows : {Range{0, 100}, {100, 170}, {170, 178}, {178, 186}, {186, 250}}) {
    documents.push_back(AttnSlice::causal(rows, rows));
  }
  const auto begins = [&](TileShape shape) {
    std::vector<int32_t> rows;
    for (const MaskTile& work_tile : build_tile_list(documents, 250, 250, shape).work_tiles)
      rows.push_back(work_tile.row_begin);
    std::sort(rows.begin(), rows.end());
    return rows;
  };
  EXPECT_EQ(begins({64, 64, false}), (std::vector<int32_t>{0, 64, 128, 192}));
  // 100: the document fills a tile. 170 and 178: short ones share the tile of the one before. 186: it fills a tile.
  EXPECT_EQ(begins({64, 64, true}), (std::vector<int32_t>{0, 64, 100, 164, 186}));
  // A causal mask, and slices that meet over the same keys, do not fall apart.
  documents = {AttnSlice::causal({0, 250}, {0, 250})};
  EXPECT_EQ(begins({64, 64, true}), begins({64, 64, false}));
  documents = {AttnSlice::full({0, 100}, {0, 100}), AttnSlice::full({100, 250}, {50, 250})};
  EXPECT_EQ(begins({64, 64, true}), begins({64, 64, false}));
}

TEST(TileList, BeginsAnewEverySoManyRows) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < 200; q += 64) {
    const Range rows{q, std::min<int64_t>(q + 64, 200)};
    slices.push_back(AttnSlice::full(rows, {q / 2, q / 2 + 64}));
    slices.push_back(AttnSlice::full(rows, {400 + q, 500}));
  }
  slices.push_back({{0, 200}, {200, 400}, 60, 330});
  expect_exact(slices, 200, 500, {.block_m = 24, .block_n = 32, .anew_every = 64});
  expect_exact(slices, 200, 500, {.block_m = 24, .block_n = 32, .anew_every = 72});  // as without
  expect_exact(slices, 200, 500, {.block_m = 24, .block_n = 32, .anew_every = 16});  // shorter than a tile
  expect_exact(slices, 200, 500, {.block_m = 24, .block_n = 32, .anew_every = 1000});
  // Rows of a tile that begins with a block see one kind of rows alone.
  const TileList list = build_tile_list({slices.data(), 2}, 64, 500, {.block_m = 24, .block_n = 32, .anew_every = 64});
  ASSERT_EQ(list.work_tiles.size(), 3U);
  EXPECT_TRUE(list.intervals.empty());
  EXPECT_THROW(build_tile_list(slices, 200, 500, {24, 32, true, 64}), InvalidArgument);
  EXPECT_THROW(build_tile_list(slices, 200, 500, {24, 32, false, -1}), InvalidArgument);
}

TEST(TileList, TransposedSlicesShowTransposedCells) {
  std::mt19937 rng(21);
  for (int round = 0; round < 100; ++round) {
    const AttnSlice slice = reference::random_slice(rng, 30, 40);
    const AttnSlice turned = transposed(slice);
    for (int64_t i = 0; i < 30; ++i) {
      for (int64_t j = 0; j < 40; ++j) ASSERT_EQ(slice.visible(i, j), turned.visible(j, i));
    }
  }
}

TEST(TileList, BoundsFarFromTheRowsDoNotOverflow) {
  // Rows near the largest allowed one, with open diagonals: i + diagonal must stay inside 32 bits.
  const int64_t rows = (int64_t{1} << 31) - (int64_t{1} << 16);
  const std::vector<AttnSlice> slices{AttnSlice::full({rows - 10, rows}, {rows - 20, rows})};
  const TileList list = build_tile_list(slices, rows, rows, {1 << 24, 128});
  for (const TileRange& run : list.runs) {
    EXPECT_LE(int64_t{run.row_end} + run.max_diag + 1, INT32_MAX);
    EXPECT_GE(int64_t{run.row_begin} + run.min_diag, INT32_MIN);
    EXPECT_EQ(run.k_begin, rows - 20);
  }
}

TEST(TileList, RefusesWhatItCannotIndex) {
  EXPECT_THROW(build_tile_list({}, int64_t{1} << 31, 10, {16, 16}), InvalidArgument);
  EXPECT_THROW(build_tile_list({}, 10, -1, {16, 16}), InvalidArgument);
  EXPECT_THROW(build_tile_list({}, 10, 10, {0, 16}), InvalidArgument);
}

}  // namespace
}  // namespace tangram::schedule
