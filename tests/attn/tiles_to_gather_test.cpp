// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which work tiles kernels that gather runs take of a mask.
#include "schedule/tiles_to_gather.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "attn/sm90/kernel_table.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

/// Choice for blocks of `rows` rows and 64 keys, every other one visible.
GatheredWorkTiles chosen(int64_t rows, int head_dim = 64, int heads_q = 64, int heads_kv = 8, int64_t seqlen = 1024) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < seqlen; q += rows) {
    const int64_t end = std::min(q + rows, seqlen);
    for (int64_t k = q / rows % 2 * 64; k < 1024; k += 128) slices.push_back(AttnSlice::full({q, end}, {k, k + 64}));
  }
  const std::span<const AttnSlice> mask(slices);
  const AttnShape shape{seqlen, 1024, heads_q, heads_kv, head_dim, head_dim, DType::kBFloat16};
  return work_tiles_to_gather({&mask, 1}, shape, sm90::kernel_table(head_dim, head_dim));
}

TEST(TilesToGather, LargerWorkTilesWhereABlockIsFewer) {
  for (const int rows : {48, 64, 96, 128, 256}) {
    const GatheredWorkTiles of_rows = chosen(rows);
    EXPECT_EQ(of_rows.work_tiles, ForwardWorkTiles::kAligned) << rows;
    EXPECT_EQ(of_rows.tile, (TileShape{24, 128, false, rows})) << rows;
  }
  EXPECT_EQ(chosen(64, 64, 64, 8, 1000).tile, (TileShape{24, 128, false, 64}));  // the last block is shorter
  EXPECT_EQ(chosen(64, 64, 64, 4).tile, (TileShape{12, 128, false, 64}));
  EXPECT_EQ(chosen(128, 64, 32, 8).tile, (TileShape{48, 128, false, 128}));
}

TEST(TilesToGather, SmallerWorkTilesElsewhere) {
  const TileShape smaller{16, 128};
  for (const int rows : {16, 32}) {
    EXPECT_EQ(chosen(rows).work_tiles, ForwardWorkTiles::kGathered) << rows;
    EXPECT_EQ(chosen(rows).tile, smaller) << rows;
  }
  EXPECT_EQ(chosen(60).tile, smaller);                                 // rows of two blocks would be one warpgroup's
  EXPECT_EQ(chosen(2048).tile, smaller);                               // no slice ends before the sequence does
  EXPECT_EQ(chosen(64, 128).work_tiles, ForwardWorkTiles::kGathered);  // heads of 128 have no larger ones
}

/// What a mask of such slices is gathered of: 64/8 heads of 64.
struct Lists {
  explicit Lists(const std::vector<AttnSlice>& slices, int64_t rows, bool by_readiness = false)
      : plain(build_tile_list(slices, rows, rows, {24, 128})), mask(slices) {
    if (by_readiness) std::reverse(plain.work_tiles.begin(), plain.work_tiles.end());
    made.emplace(std::span(&plain, 1), std::span(&mask, 1), AttnShape{rows, rows, 64, 8, 64, 64, DType::kBFloat16},
                 sm90::kernel_table(64, 64));
  }
  TileList plain;
  std::span<const AttnSlice> mask;
  std::optional<TilesToGather> made;
};

std::vector<AttnSlice> every_fourth(int64_t rows, int64_t block) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < rows / block; ++q) {
    for (int64_t k = q % 4; k < rows / block; k += 4) {
      slices.push_back(AttnSlice::full({q * block, (q + 1) * block}, {k * block, (k + 1) * block}));
    }
  }
  return slices;
}

TEST(TilesToGather, BlocksOf128KeepTheirRunsInWorkTilesThatBeginWithThem) {
  const std::vector<AttnSlice> slices = every_fourth(2048, 128);
  const Lists lists(slices, 2048);
  const GatherableTiles& view = lists.made->view();
  ASSERT_EQ(view.masks.size(), 1U);
  EXPECT_TRUE(view.alone);
  EXPECT_EQ(lists.made->work_tiles(), ForwardWorkTiles::kAligned);
  EXPECT_EQ(view.masks[0].work_tiles.size(), 16U * 6);
}

TEST(TilesToGather, HeadsArePackedByPowersOfTwoWherePlainTilesTakeAnyNumber) {
  const std::vector<AttnSlice> slices = every_fourth(2048, 64);
  const std::span<const AttnSlice> mask(slices);
  const AttnShape shape{2048, 2048, 48, 4, 64, 64, DType::kBFloat16};  // 12 heads a tile of 192 rows, or 4
  const TileList plain = build_tile_list(slices, 2048, 2048, {16, 128});
  const TilesToGather made({&plain, 1}, {&mask, 1}, shape, sm90::kernel_table(64, 64));
  ASSERT_EQ(made.view().masks.size(), 1U);
  EXPECT_EQ(made.view().masks[0].shape.block_m, 32);
  EXPECT_EQ(made.view().num_groups, 12);
}

TEST(TilesToGather, NothingWhereKeysComeLateOrBlocksAreCutEitherWay) {
  const std::vector<AttnSlice> slices = every_fourth(2048, 128);
  EXPECT_TRUE(Lists(slices, 2048, true).made->view().masks.empty());
  std::vector<AttnSlice> documents;
  for (int64_t q = 0; q < 2048; q += 256) documents.push_back(AttnSlice::causal({q, q + 256}, {q, q + 256}));
  EXPECT_TRUE(Lists(documents, 2048).made->view().masks.empty());
  const std::vector<AttnSlice> all{AttnSlice::full({0, 2048}, {0, 2048})};
  EXPECT_TRUE(Lists(all, 2048).made->view().masks.empty());
}

}  // namespace
}  // namespace tangram::schedule
