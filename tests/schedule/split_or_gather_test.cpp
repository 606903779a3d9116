// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/split_or_gather.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "machine/gpu_model.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

constexpr GpuModel kGpu{.multiprocessors = 132};

AttnShape shape_of(int64_t rows, int64_t keys) {
  return {.seqlen_q = rows, .seqlen_k = keys, .num_heads_q = 64, .num_heads_kv = 8, .head_dim = 128, .head_dim_v = 128};
}

/// Blocks of 16 rows and keys, an eighth of them, eight query heads a K/V head.
TileList eighth_of_blocks(int64_t rows, int64_t keys) {
  std::mt19937 random(7);
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < rows; q += 16) {
    for (int64_t k = 0; k < keys; k += 16) {
      if (random() % 8 == 0) slices.push_back(AttnSlice::full({q, q + 16}, {k, k + 16}));
    }
  }
  return build_tile_list(slices, rows, keys, {16, 128});
}

TEST(SplitOrGather, BlocksOf16OverManyRowsAreGathered) {
  // 8,192 rows were split, at 99 TFLOP/s instead of 230: parts gather nothing, and take a step for every block.
  const TileList tiles = eighth_of_blocks(8192, 8192);
  const AttnShape shape = shape_of(8192, 8192);
  ASSERT_TRUE(split_items(tiles, shape, 8, kGpu) && gather_runs(tiles));
  const SplitOrGathered chosen = split_or_gather(tiles, shape, 8, kGpu, true);
  EXPECT_TRUE(chosen.gathered && !chosen.parts);
}

TEST(SplitOrGather, OneTileOfRowsIsSplit) {
  // Its items are a few for 132 multiprocessors: parts gain more than full steps.
  const TileList tiles = eighth_of_blocks(16, 65536);
  const SplitOrGathered chosen = split_or_gather(tiles, shape_of(16, 65536), 8, kGpu, true);
  EXPECT_TRUE(chosen.parts && !chosen.gathered);
}

TEST(SplitOrGather, KernelsThatCannotGatherSplit) {
  const TileList tiles = eighth_of_blocks(8192, 8192);
  const SplitOrGathered chosen = split_or_gather(tiles, shape_of(8192, 8192), 8, kGpu, false);
  EXPECT_TRUE(chosen.parts && !chosen.gathered);
}

TEST(SplitOrGather, LeavesMasksAloneThatGainNothing) {
  const std::vector<AttnSlice> causal{AttnSlice::causal({0, 32768}, {0, 32768})};
  const TileList tiles = build_tile_list(causal, 32768, 32768, {16, 128});
  const SplitOrGathered chosen = split_or_gather(tiles, shape_of(32768, 32768), 8, kGpu, true);
  EXPECT_FALSE(chosen.parts || chosen.gathered);
}

}  // namespace
}  // namespace tangram::schedule
