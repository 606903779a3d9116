// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/mask_image.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "schedule/tile_list.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"
#include "tangram/mask.hpp"

namespace tangram::schedule {
namespace {

constexpr TileShape kForward{16, 128}, kBackward{128, 64, true};
constexpr int64_t kRows = 3000;
constexpr AttnShape kShape{kRows, kRows, 8, 1, 128, 128, DType::kBFloat16};

struct Lists {
  TileList forward;
  WorkList backward;
};

Lists lists_of(const std::vector<AttnSlice>& slices, BackwardCalls calls) {
  std::vector<AttnSlice> keys_first;
  for (const AttnSlice& slice : slices) keys_first.push_back(transposed(slice));
  return {
      build_tile_list(slices, kRows, kRows, kForward),
      make_work_list(build_tile_list(keys_first, kRows, kRows, kBackward), slices, kShape, {}, {}, {.calls = calls})};
}

/// Documents, some with a window, some that see a block of an earlier one besides, some rows that see nothing.
std::vector<AttnSlice> random_slices(std::mt19937& rng) {
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(rng);
  };
  std::vector<AttnSlice> slices;
  for (int64_t begin = 0; begin < kRows;) {
    const int64_t end = std::min(kRows, begin + number(20, 800));
    const Range rows{begin, end};
    const int64_t kind = number(0, 4);
    if (kind == 0) slices.push_back(AttnSlice::full(rows, rows));
    if (kind == 1) slices.push_back(AttnSlice::causal(rows, rows));
    if (kind >= 2) slices.push_back({rows, rows, -number(0, 200), number(0, 5)});
    if (kind == 3 && begin > 100) slices.push_back(AttnSlice::causal(rows, {begin - 100, begin - 40}));
    begin = end;
  }
  const Mask checked(kRows, kRows, slices);
  return {checked.slices().begin(), checked.slices().end()};
}

template <class T>
const T* at(const std::byte* image, size_t offset) {
  return reinterpret_cast<const T*>(image + offset);
}

template <class T>
void expect_bytes(const std::vector<T>& wanted, const std::byte* at, const char* what) {
  EXPECT_TRUE(wanted.empty() || std::memcmp(wanted.data(), at, wanted.size() * sizeof(T)) == 0) << what;
}

/// Runs with the intervals that they point to.
void expect_runs(const std::vector<TileRange>& wanted, const std::vector<RowInterval>& intervals, int block_rows,
                 const std::byte* image, size_t runs_at, size_t intervals_at) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    TileRange run = at<TileRange>(image, runs_at)[i];
    if (run.interval_begin >= 0) {
      const auto begin = static_cast<size_t>(wanted[i].interval_begin);
      const size_t count = std::min(static_cast<size_t>(block_rows), intervals.size() - begin);
      const RowInterval* found = at<RowInterval>(image, intervals_at) + run.interval_begin;
      EXPECT_TRUE(std::equal(found, found + count, intervals.begin() + static_cast<std::ptrdiff_t>(begin)));
      run.interval_begin = wanted[i].interval_begin;
    }
    EXPECT_EQ(run, wanted[i]);
  }
}

TEST(MaskImage, HoldsTheListsOfOneMaskAfterTheOther) {
  std::mt19937 rng(1);
  size_t runs_with_intervals = 0, segments = 0;
  for (const bool deterministic : {false, true}) {
    const ImageLayout layout(kShape, kForward, kBackward, {.max_documents = 100, .deterministic = deterministic});
    std::vector<std::byte> memory(layout.bytes() + 256);
    std::byte* const image = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
    for (int round = 0; round < 200; ++round) {
      const std::vector<AttnSlice> slices = random_slices(rng);
      const Lists lists = lists_of(slices, deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault);
      const WorkList& work = lists.backward;
      layout.check(lists.forward, work);
      const size_t bytes = layout.write(image, lists.forward, work);
      ASSERT_LE(bytes, layout.bytes());
      std::fill(image + bytes, image + layout.bytes(), std::byte{0xff});  // is not copied
      const auto& mask_info = *at<BackwardMaskInfo>(image, layout.mask_info());
      EXPECT_EQ(mask_info.num_work_tiles, static_cast<int32_t>(work.work_tiles.size()));
      EXPECT_EQ(mask_info.walk.descending, work.walk.descending);
      EXPECT_EQ(mask_info.walk.heads_innermost, work.walk.heads_innermost);
      EXPECT_EQ(mask_info.zeroed_sums, work.zeroed_sums);
      expect_bytes(lists.forward.work_tiles, image + layout.forward_work_tiles(), "forward items");
      expect_bytes(work.work_tiles, image + layout.backward_work_tiles(), "work_tiles");
      expect_bytes(work.q_tiles, image + layout.q_tiles(), "query tiles");
      expect_runs(lists.forward.runs, lists.forward.intervals, kForward.block_m, image, layout.forward_runs(),
                  layout.intervals());
      expect_runs(work.runs, work.intervals, kBackward.block_m, image, layout.backward_runs(), layout.intervals());
      for (const TileRange& run : work.runs) runs_with_intervals += run.interval_begin >= 0;
      for (int64_t tile = 0; tile < layout.num_q_tiles(); ++tile) {
        const auto i = static_cast<size_t>(tile);
        const bool used = i < work.q_tiles.size();
        const QueryTile& rows = at<QueryTile>(image, layout.q_tiles())[tile];
        EXPECT_EQ(rows.row_begin == rows.row_end, !used);
        EXPECT_EQ(at<uint64_t>(image, layout.covered_queries())[tile],
                  used && !work.covered_queries.empty() ? work.covered_queries[i] : ~uint64_t{0});
      }
      const DqOrderSegment* in_image = at<DqOrderSegment>(image, layout.dq_order_segments());
      for (size_t i = 0; i < work.run_tiles.size(); ++i) {
        const RangeQueryTiles& run = at<RangeQueryTiles>(image, layout.run_tiles())[i];
        EXPECT_EQ(run.first, work.run_tiles[i].first);
        EXPECT_EQ(run.end, work.run_tiles[i].end);
        for (size_t s = 0; deterministic; ++s, ++segments) {
          const DqOrderSegment& wanted = work.dq_order_segments[static_cast<size_t>(work.run_tiles[i].segment) + s];
          ASSERT_EQ(in_image[static_cast<size_t>(run.segment) + s], wanted);
          if (wanted.first_tile == kNoTile) break;
        }
      }
    }
  }
  EXPECT_GT(runs_with_intervals, 100u);
  EXPECT_GT(segments, 1000u);
}

TEST(MaskImage, RefusesWhatHasNoRoomAndNamesIt) {
  const ImageLayout layout(kShape, kForward, kBackward, {.max_documents = 3});
  std::vector<AttnSlice> documents, blocks;
  for (int64_t row = 0; row < kRows; row += 100)
    documents.push_back(AttnSlice::full({row, row + 100}, {row, row + 100}));
  for (int64_t row = 0; row < kRows; row += 40) blocks.push_back(AttnSlice::full({row, row + 20}, {0, 1000}));
  for (int64_t key = 1100; key < kRows; key += 40) blocks.push_back(AttnSlice::full({0, kRows}, {key, key + 20}));
  const auto message = [&](const std::vector<AttnSlice>& slices) {
    const Lists lists = lists_of(slices, BackwardCalls::kDefault);
    return support::message_of<InvalidArgument>([&] { layout.check(lists.forward, lists.backward); });
  };
  EXPECT_EQ(message({AttnSlice::causal({0, kRows}, {0, kRows})}), "nothing was thrown");
  EXPECT_EQ(message(documents),
            "MaskBuffer::set: the mask must fit the buffer, a larger max_documents makes room (got 60 tiles of "
            "queries, room for "
            "50, max_documents=3)");
  EXPECT_NE(message(blocks).find("a larger max_slices makes room"), std::string::npos) << message(blocks);
}

TEST(MaskImage, RefusesRowsWithoutKeysWhereThereAreToBeNone) {
  const ImageLayout layout(kShape, kForward, kBackward, {.allow_fully_masked_rows = false});
  const auto message = [&](const Range& queries) {
    const Lists lists = lists_of({AttnSlice::full(queries, {0, kRows})}, BackwardCalls::kDefault);
    return support::message_of<InvalidArgument>([&] { layout.check(lists.forward, lists.backward); });
  };
  EXPECT_EQ(message({0, kRows}), "nothing was thrown");
  EXPECT_EQ(message({0, kRows - 1}),
            "MaskBuffer::set: each row must see a key, as the buffer is made for (got a mask with rows that see none, "
            "allow_fully_masked_rows=false)");
}

TEST(MaskImage, RefusesCapacitiesThatAreNone) {
  const auto make = [](const MaskCapacity& capacity) { ImageLayout(kShape, kForward, kBackward, capacity); };
  EXPECT_THROW(make({.max_documents = 0}), InvalidArgument);
  EXPECT_THROW(make({.max_slices = -3}), InvalidArgument);
  EXPECT_THROW(make({.max_documents = int64_t{1} << 40}), InvalidArgument);
}

TEST(MaskImage, APassThatItIsNotForTakesNoRoom) {
  const auto bytes = [](AttnPasses passes) {
    return ImageLayout(kShape, kForward, kBackward, {.passes = passes}).bytes();
  };
  EXPECT_LT(bytes(AttnPasses::kForward) + bytes(AttnPasses::kBackward), bytes(AttnPasses::kBoth) + 4096);
  EXPECT_GT(bytes(AttnPasses::kBoth), bytes(AttnPasses::kForward));
}

}  // namespace
}  // namespace tangram::schedule
