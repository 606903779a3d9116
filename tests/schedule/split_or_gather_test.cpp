// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/split_or_gather.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include "schedule/tile_list.hpp"
#include "tangram/gpu_model.hpp"

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

SplitOrGathered choose(const TileList& tiles, const AttnShape& shape, bool can_gather) {
  const GatherableTiles gatherable{can_gather ? std::span(&tiles, 1) : std::span<const TileList>{}};
  return split_or_gather({&tiles, 1}, shape, 8, kGpu, gatherable)[0];
}

TEST(SplitOrGather, BlocksOf16OverManyRowsAreGathered) {
  // 8,192 rows were split, at 99 TFLOP/s instead of 230: parts gather nothing, and take a step for every block.
  const TileList tiles = eighth_of_blocks(8192, 8192);
  const AttnShape shape = shape_of(8192, 8192);
  ASSERT_TRUE(split_work_tiles(tiles, shape, 8, kGpu) && gather_runs(tiles));
  const SplitOrGathered chosen = choose(tiles, shape, true);
  EXPECT_TRUE(chosen.gathered && !chosen.parts);
}

TEST(SplitOrGather, OneTileOfRowsIsSplit) {
  // Its work tiles are a few for 132 multiprocessors: parts gain more than full steps.
  const TileList tiles = eighth_of_blocks(16, 65536);
  const SplitOrGathered chosen = choose(tiles, shape_of(16, 65536), true);
  EXPECT_TRUE(chosen.parts && !chosen.gathered);
}

TEST(SplitOrGather, TilesOfNoOtherKernelAreTakenWhereTheyGatherNothing) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < 8192; q += 128) {
    for (int64_t k = q % 1024; k < 8192; k += 1024) slices.push_back(AttnSlice::full({q, q + 128}, {k, k + 128}));
  }
  const TileList plain = build_tile_list(slices, 8192, 8192, {24, 128});
  const TileList aligned = build_tile_list(slices, 8192, 8192, {.block_m = 24, .block_n = 128, .anew_every = 128});
  const AttnShape shape = shape_of(8192, 8192);
  const auto chosen = [&](const GatherableTiles& gatherable) {
    return split_or_gather({&plain, 1}, shape, 8, kGpu, gatherable)[0];
  };
  const SplitOrGathered taken = chosen({{&aligned, 1}, 0.9, true});
  ASSERT_TRUE(taken.gathered.has_value());
  EXPECT_EQ(taken.tiles, &aligned);
  EXPECT_TRUE(taken.gathered->groups.empty());
  EXPECT_EQ(taken.gathered->work_tiles.size(), aligned.work_tiles.size());
  const SplitOrGathered left = chosen({{&aligned, 1}, 2.0, true});  // slower
  EXPECT_FALSE(left.gathered.has_value());
  EXPECT_EQ(left.tiles, &plain);
}

TEST(SplitOrGather, WorkTilesOfMoreHeadGroupsAreCountedAsSuch) {
  // Kernels that gather may pack fewer heads into a tile: then each work tile runs so many times more.
  const TileList tiles = eighth_of_blocks(8192, 8192);
  const AttnShape shape = shape_of(8192, 8192);
  const auto gathers = [&](int64_t num_groups) {
    const GatherableTiles gatherable{.masks = {&tiles, 1}, .num_groups = num_groups};
    return split_or_gather({&tiles, 1}, shape, 8, kGpu, gatherable)[0].gathered.has_value();
  };
  EXPECT_TRUE(gathers(8));
  EXPECT_FALSE(gathers(64));
}

TEST(SplitOrGather, KernelsThatCannotGatherSplit) {
  const TileList tiles = eighth_of_blocks(8192, 8192);
  const SplitOrGathered chosen = choose(tiles, shape_of(8192, 8192), false);
  EXPECT_TRUE(chosen.parts && !chosen.gathered);
}

TEST(SplitOrGather, OneLaunchOfSeveralMasksDoesEither) {
  // The second can only be gathered, which must not cost the first its parts: these gain far more.
  const AttnShape shape = shape_of(16, 65536);
  const std::vector<AttnSlice> few{AttnSlice::full({0, 16}, {0, 16}), AttnSlice::full({0, 16}, {256, 272})};
  const std::vector<TileList> masks{eighth_of_blocks(16, 65536), build_tile_list(few, 16, 65536, {16, 128})};
  ASSERT_TRUE(gather_runs(masks[1]) && !split_work_tiles(masks[1], shape, 8, kGpu));
  const std::vector<SplitOrGathered> chosen = split_or_gather(masks, shape, 8, kGpu, {masks});
  EXPECT_TRUE(chosen[0].parts && !chosen[0].gathered);
  EXPECT_FALSE(chosen[1].parts || chosen[1].gathered);
}

/// An eighth of blocks of 64 rows and keys, in tiles of 24 rows, and in those of 16 that a kernel which gathers takes.
std::vector<AttnSlice> blocks_of_64(int64_t rows) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < rows; q += 64) {
    for (int64_t k = q % 512; k < rows; k += 512) slices.push_back(AttnSlice::full({q, q + 64}, {k, k + 64}));
  }
  return slices;
}

TEST(SplitOrGather, TakesOtherTilesWhereTheirStepsTakeLess) {
  const AttnShape shape = shape_of(16384, 16384);
  const std::vector<AttnSlice> slices = blocks_of_64(16384);
  const TileList tiles = build_tile_list(slices, 16384, 16384, {24, 128});
  const TileList others = build_tile_list(slices, 16384, 16384, {16, 128});
  EXPECT_TRUE(may_gather(tiles));
  // Half as many steps a work tile, of which there are 1.5 times as many.
  const SplitOrGathered chosen = split_or_gather({&tiles, 1}, shape, 8, kGpu, {{&others, 1}, 0.8})[0];
  EXPECT_TRUE(chosen.gathered && !chosen.parts);
  EXPECT_EQ(chosen.tiles, &others);
  const SplitOrGathered slow = split_or_gather({&tiles, 1}, shape, 8, kGpu, {{&others, 1}, 1.6})[0];
  EXPECT_FALSE(slow.gathered);
  EXPECT_EQ(slow.tiles, &tiles);
}

TEST(SplitOrGather, TheOtherMasksOfALaunchFollowToOtherTiles) {
  const AttnShape shape = shape_of(4096, 4096);
  const std::vector<std::vector<AttnSlice>> slices{blocks_of_64(4096), {AttnSlice::full({0, 4096}, {0, 512})}};
  std::vector<TileList> masks, others;
  for (const std::vector<AttnSlice>& of_mask : slices) {
    masks.push_back(build_tile_list(of_mask, 4096, 4096, {24, 128}));
    others.push_back(build_tile_list(of_mask, 4096, 4096, {16, 128}));
  }
  EXPECT_FALSE(may_gather(masks[1]));
  const std::vector<SplitOrGathered> chosen = split_or_gather(masks, shape, 4, kGpu, {others, 0.5});
  EXPECT_TRUE(chosen[0].gathered && !chosen[1].gathered);
  EXPECT_EQ(chosen[1].tiles, &others[1]);
}

TEST(SplitOrGather, OrdersOfArrivalStay) {
  const std::vector<AttnSlice> slices = blocks_of_64(1024);
  TileList tiles = build_tile_list(slices, 1024, 1024, {24, 128});
  ASSERT_TRUE(may_gather(tiles));
  std::reverse(tiles.work_tiles.begin(), tiles.work_tiles.end());  // no longer longest first
  EXPECT_FALSE(may_gather(tiles));
}

TEST(SplitOrGather, LeavesMasksAloneThatGainNothing) {
  const std::vector<AttnSlice> causal{AttnSlice::causal({0, 32768}, {0, 32768})};
  const TileList tiles = build_tile_list(causal, 32768, 32768, {16, 128});
  const SplitOrGathered chosen = choose(tiles, shape_of(32768, 32768), true);
  EXPECT_FALSE(chosen.parts || chosen.gathered);
}

}  // namespace
}  // namespace tangram::schedule
