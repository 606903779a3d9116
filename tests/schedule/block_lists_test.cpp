// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/builder/block_lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "schedule/block_lists_cases.hpp"
#include "schedule/builder/report_text.hpp"
#include "support/message_of.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::schedule::builder {
namespace {

using support::message_of;

TEST(BlockLists, AreThoseOfTheHostForEachHeadGroup) {
  std::mt19937 rng(11);
  for (const BlockCase& c : gathered_cases()) {
    BuiltBlocks images(c);
    for (int round = 0; round < support::rounds(300, 12); ++round) {
      const BlockChoice choice = random_block_choice(rng, c);
      ASSERT_EQ(images.build(choice.table()).problem, Problem::kNone);
      images.expect_as_host(choice);
      ASSERT_FALSE(HasFailure()) << "round " << round << ", blocks of " << choice.of_groups[0].block << ", causal "
                                 << choice.of_groups[0].causal << ", " << c.capacity.head_groups
                                 << " head groups, tile " << c.tile_rows;
    }
  }
}

TEST(BlockLists, SectionsAreThoseThatTheCacheHolds) {
  BlockCase c = block_case(16384, 65536, 64, 8, 16, 64, 8);
  const auto sections = [&] {
    const BlockImageLayout layout(c.shape, c.tile_rows, c.capacity, {});
    return std::pair(layout.forward_section(), layout.backward_section());
  };
  EXPECT_EQ(sections(), std::pair(1, 1)) << "32 MB of keys and values of a head group";
  c.shape.seqlen_k = 4096;
  EXPECT_EQ(sections(), std::pair(7, 2)) << "2 MB, and 6 with sums: a quarter of the cache is theirs";
  c.shape.seqlen_q = 256;
  EXPECT_EQ(sections(), std::pair(8, 8)) << "16 tiles: sections are of four items a multiprocessor";
  c.shape.seqlen_k = 16384;
  EXPECT_EQ(sections(), std::pair(8, 2)) << "but sums stay in the cache";
}

TEST(BlockLists, WhatIsRefusedLeavesAMaskThatShowsNothing) {
  const BlockCase c = block_case(512, 640, 16, 2, 16, 128, 2);
  BuiltBlocks images(c);
  BlockChoice good;
  for (int g = 0; g < 2; ++g) {
    good.of_groups.push_back({{0, 3, -1, 4, 1, -1, -1, -1, -1, g, g + 1, g + 2}, 3, 128, false});
    good.indices.insert(good.indices.end(), good.of_groups[g].indices.begin(), good.of_groups[g].indices.end());
  }
  struct Case {
    size_t at;
    int32_t entry;
    Problem problem;
    const char* text;
  };
  int32_t num_refused = 0;
  const std::vector<std::vector<AttnSlice>> nothing(2);
  for (const Case& wrong :
       {Case{4, 5, Problem::kBlockOutside, "(got 5 in query block 1; found"},
        Case{12 + 9, -2, Problem::kBlockOutside, "(got -2 in query block 3 of head group 1; found"},
        Case{13, 0, Problem::kBlockRepeats, "(got 0 in query block 0 of head group 1; found"},
        Case{12 + 7, 2, Problem::kBlockBehindPadding, "(got 2 in query block 2 of head group 1; "}}) {
    BlockChoice choice = good;
    choice.indices[wrong.at] = wrong.entry;
    const Report report = images.build(choice.table());
    EXPECT_EQ(report.num_refused, ++num_refused);
    EXPECT_EQ(report.problem, wrong.problem);
    EXPECT_NE(report_text(report).find(wrong.text), std::string::npos) << report_text(report);
    images.expect_as_host(nothing);
    ASSERT_FALSE(HasFailure()) << num_refused;
  }
  EXPECT_EQ(images.build(good.table()).num_refused, num_refused) << "the next one is taken";
  images.expect_as_host(good);
}

TEST(BlockLists, TablesThatHaveNoRoomAreRefusedBefore) {
  const BlockCase c = block_case(512, 512, 16, 2, 16, 32, 2);
  MaskCapacity capacity = c.capacity;
  capacity.max_slices = 2 * 16 * 4;
  const BlockImageLayout layout(c.shape, c.tile_rows, capacity, {});
  const int32_t index = 0;
  const BlockTable table{.indices = &index, .width = 4, .block_size = 32, .head_groups = 2};
  EXPECT_EQ(block_lists_of(layout, table).num_lines, 32);
  const auto refused = [&](auto change) {
    BlockTable wrong = table;
    change(wrong);
    return message_of<InvalidArgument>([&] { block_lists_of(layout, wrong); });
  };
  EXPECT_EQ(refused([](BlockTable& t) { t.width = 5; }),
            "MaskBuffer::set_blocks: the mask must fit the buffer, a larger max_slices makes room (got 2 x 16 query "
            "blocks of up "
            "to 5 blocks of 32, room for 128 blocks of 32)");
  EXPECT_EQ(refused([](BlockTable& t) { t.head_groups = 1; }),
            "MaskBuffer::set_blocks: tables must be of the buffer's head groups, 2 (got head_groups=1)");
  EXPECT_EQ(refused([](BlockTable& t) { t.block_size = 16; }),
            "MaskBuffer::set_blocks: block_size must be at least that of the buffer, 32, and a multiple of 16 (got "
            "block_size=16)");
  EXPECT_EQ(refused([](BlockTable& t) { t.indices = nullptr; }),
            "MaskBuffer::set_blocks: needs block indices (got none)");
}

TEST(BlockLists, CapacitiesThatBlocksCannotHaveAreRefused) {
  const auto refused = [](auto change) {
    BlockCase c = block_case(512, 512, 16, 2, 16, 32, 2);
    change(c);
    return message_of<InvalidArgument>([&] { BlockImageLayout(c.shape, c.tile_rows, c.capacity, {}); });
  };
  EXPECT_EQ(refused([](BlockCase& c) { c.capacity.block_size = 24; }),
            "MaskBuffer: blocks must be multiples of 16 rows, the queries of a tile or 16 keys (got block_size=24)");
  EXPECT_EQ(refused([](BlockCase& c) { c.shape.seqlen_k = 500; }),
            "MaskBuffer: blocks must be of a multiple of 16 keys (got seqlen_k=500)");
  EXPECT_EQ(refused([](BlockCase& c) { c.capacity.deterministic = true; }),
            "MaskBuffer: blocks must not be of deterministic calls, since kernels that gather add gradients of keys in "
            "any order; a buffer without block_size, or a mask of its own, may be (got deterministic=true)");
  EXPECT_EQ(refused([](BlockCase& c) { c.capacity.head_groups = 3; }),
            "MaskBuffer: head_groups must divide num_heads_kv (got head_groups=3, num_heads_kv=2)");
  EXPECT_EQ(refused([](BlockCase& c) { c.capacity.allow_fully_masked_rows = false; }),
            "MaskBuffer: blocks must be allowed rows that see no key, which kernels that gather find without a table "
            "(got allow_fully_masked_rows=false)");
}

// Whatever the mask, work tiles are as many: of each tile of keys every query head is in one, with all steps that its
// mask has there, and of a fully masked tile one work tile for each K/V head writes zeros.
TEST(BlockLists, KvStationaryWorkTilesAreScheduledHeadByHead) {
  std::mt19937 rng(12);
  for (const int multiprocessors : {1, 16, 132}) {
    BlockCase c = kv_stationary_case(block_case(1100, 1104, 16, 4, 32, 128, 2));
    c.gpu.multiprocessors = multiprocessors;
    BuiltBlocks images(c);
    const KeyImage& keys = images.layout().keys();
    const KeyTileSchedule& schedule = keys.schedule();
    EXPECT_EQ(schedule.head_splits, multiprocessors == 1 ? 2 : 4);
    ASSERT_EQ(schedule.num_work_tiles(), 9 * 4 * schedule.head_splits);
    const BlockChoice choice = random_block_choice(rng, c);
    ASSERT_EQ(images.build(choice.table()).problem, Problem::kNone);
    const auto* const work_tiles = reinterpret_cast<const WorkTile*>(images.image() + keys.work_tiles());
    std::map<std::pair<int, int>, int> steps, rows;  // by query head and tile, by K/V head and tile
    for (int i = 0; i < schedule.num_work_tiles(); ++i) {
      const WorkTile& work_tile = work_tiles[i];
      EXPECT_EQ(work_tile.kv_head, i / (9 * schedule.head_splits)) << "one K/V head after the other";
      if (i % 9 != 0) {
        EXPECT_GE(work_tiles[i - 1].num_steps, work_tile.num_steps) << "most steps first";
      }
      const int tile = work_tile.row_begin / kKeyTileRows;
      EXPECT_LT(work_tile.accum_tile, keys.num_accum_tiles());
      if (work_tile.num_steps == 0 || work_tile.head_split == 0)
        rows[{work_tile.kv_head, tile}] += work_tile.row_end - work_tile.row_begin;
      for (int head = work_tile.head_begin; head < work_tile.head_end; ++head) {
        steps[{head, tile}] += work_tile.num_steps / (work_tile.head_end - work_tile.head_begin);
      }
    }
    for (const auto& [place, count] : rows) EXPECT_EQ(count, std::min(128, 1104 - place.second * 128));
    EXPECT_EQ(rows.size(), 4u * 9);
    for (int head = 0; head < 16; ++head) {
      const Choice& of_group = choice.of_groups[static_cast<size_t>(head / 8)];
      std::vector<int> wanted(9);
      for (const AttnSlice& slice : slices_apart(of_group, c.shape)) {
        for (int64_t key = slice.k_range.begin; key < slice.k_range.end; key += kKeyTileRows) {
          const int64_t first = slice.max_diag == 0 ? key : slice.q_range.begin;
          wanted[static_cast<size_t>(key / kKeyTileRows)] += static_cast<int>((slice.q_range.end - first + 63) / 64);
        }
      }
      for (int tile = 0; tile < 9; ++tile) EXPECT_EQ((steps[{head, tile}]), wanted[static_cast<size_t>(tile)]);
    }
  }
}

// Keys of a tile that see other queries each, of masks of the host: runs have intervals of their own.
TEST(BlockLists, KvStationaryListsOfMasksOfTheHost) {
  const BlockCase c = kv_stationary_case(block_case(512, 512, 8, 2, 32, 128, 2));
  BuiltBlocks images(c);
  const BlockImageLayout& layout = images.layout();
  const std::vector<AttnSlice> halves{AttnSlice::full({0, 128}, {0, 64}), AttnSlice::full({128, 512}, {64, 128})};
  const std::vector<AttnSlice> blocks{AttnSlice::full({0, 256}, {0, 512})};
  for (const auto& [first, second] : {std::pair(blocks, halves), std::pair(halves, blocks)}) {
    const std::vector<BlockMask> masks{layout.make(first), layout.make(second)};
    layout.check(masks);
    EXPECT_LE(layout.write(images.image(), masks), layout.bytes());
    const SeenBlocks seen(layout, images.image());
    int num_runs = 0;
    for (const SeenBlocks::Keys& keys : seen.keys) {
      const bool of_halves = (keys.work_tile.kv_head == 1) == (second == halves);
      for (const TileRange& run : keys.runs) {
        ++num_runs;
        ASSERT_EQ(run.interval_begin >= 0, of_halves);
        if (!of_halves) continue;
        const auto* const rows = reinterpret_cast<const RowInterval*>(images.image()) + run.interval_begin;
        for (int key = 0; key < 128; ++key) {
          EXPECT_EQ(rows[key], (key < 64 ? RowInterval{0, 128} : RowInterval{128, 512})) << key;
        }
      }
    }
    EXPECT_EQ(num_runs, layout.keys().schedule().head_splits * (4 + 1));
  }
  const std::vector<AttnSlice> of_few{AttnSlice::full({0, 160}, {0, 128})};
  EXPECT_EQ(message_of<InvalidArgument>([&] { layout.make(of_few); }),
            "MaskBuffer::set: a mask of blocks must be such that all queries of a tile of 64 see something, or none "
            "(got another)");
  std::vector<AttnSlice> many;
  for (int64_t key = 0; key < 512; ++key) {
    for (int64_t row = 0; row < 512; row += 64) {
      if ((row / 64 + key) % 2 == 0) many.push_back(AttnSlice::full({row, row + 64}, {key, key + 1}));
    }
  }
  EXPECT_NE(message_of<InvalidArgument>([&] {
              layout.check(std::vector{layout.make(many), layout.make(many)});
            }).find("few keys with queries of their own"),
            std::string::npos);
}

// A window over blocks has two runs that only some rows see.
TEST(BlockLists, MasksOfTheHostAreThoseWhoseTilesSeeGroups) {
  const BlockCase c = block_case(512, 512, 8, 1, 16, 16, 1);
  const BlockImageLayout layout(c.shape, c.tile_rows, c.capacity, {});
  const AttnSlice window{{0, 512}, {0, 512}, -100, 0};
  EXPECT_NE(
      message_of<InvalidArgument>([&] { layout.make(std::vector{window}); }).find("must be such that tiles of 16"),
      std::string::npos);
  const std::vector<AttnSlice> blocks{AttnSlice::full({0, 256}, {32, 64}), AttnSlice::full({0, 256}, {96, 512})};
  const std::vector<BlockMask> masks{layout.make(blocks)};
  EXPECT_EQ(masks[0].forward.groups.size(), 28u) << "shared by all tiles";
  EXPECT_EQ(masks[0].backward.groups.size(), 28u);
  EXPECT_THROW(layout.check(std::vector<BlockMask>(2)), InvalidArgument);
}

}  // namespace
}  // namespace tangram::schedule::builder
