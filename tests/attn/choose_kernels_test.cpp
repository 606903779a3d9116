// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How many query heads share a tile of the forward pass, and which row and head a row of it is.
#include "schedule/choose_kernels.hpp"

#include <gtest/gtest.h>

#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/kernel_table.hpp"

namespace tangram {
namespace {

using schedule::ForwardWorkTiles;

AttnShape shape_of(int group, int head_dim) { return {4096, 4096, 2 * group, 2, head_dim, head_dim, DType::kBFloat16}; }

int packed(int group, int head_dim, ForwardWorkTiles work_tiles = ForwardWorkTiles::kPlain) {
  return schedule::packed_heads(sm90::kernel_table(head_dim, head_dim), shape_of(group, head_dim), work_tiles);
}

int tile_rows(int group, int head_dim) {
  return schedule::forward_tile(sm90::kernel_table(head_dim, head_dim), shape_of(group, head_dim)).block_m;
}

TEST(Packing, ARowTimesTheReciprocalIsItsQueryRow) {
  for (int pack = 1; pack <= 64; ++pack) {
    const uint32_t packing = sm90::packing_of(static_cast<uint32_t>(pack));
    EXPECT_EQ(packing & 0xffff, static_cast<uint32_t>(pack));
    for (int row = 0; row <= 192; ++row) {
      EXPECT_EQ(static_cast<int>(static_cast<uint32_t>(row) * (packing >> 16) >> sm90::kPackingShift), row / pack);
    }
  }
}

TEST(Packing, TilesOf192RowsTakeAnyNumberOfHeadsThatWastesFewRows) {
  for (const int group : {1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 16, 24, 48, 64}) EXPECT_EQ(packed(group, 64), group);
  EXPECT_EQ(packed(13, 64), 1) << "10 of 192 rows would be unused";
  EXPECT_EQ(packed(14, 64), 7);
  EXPECT_EQ(packed(40, 64), 10);
  EXPECT_EQ(packed(128, 64), 64);
  EXPECT_EQ(tile_rows(5, 64), 38);
  EXPECT_EQ(tile_rows(12, 64), 16);
}

TEST(Packing, OtherTilesTakePowersOfTwo) {
  for (const auto& [group, power] : {std::pair{5, 1}, {6, 2}, {12, 4}, {24, 8}, {128, 64}}) {
    EXPECT_EQ(packed(group, 128), power);
    EXPECT_EQ(packed(group, 32), power) << "kernels for any dims of a class";
    EXPECT_EQ(packed(group, 64, ForwardWorkTiles::kGathered), power);
    EXPECT_EQ(packed(group, 64, ForwardWorkTiles::kAligned), power);
  }
  EXPECT_EQ(tile_rows(6, 128), 64);
}

}  // namespace
}  // namespace tangram
