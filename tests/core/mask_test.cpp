// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "reference/cells.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using reference::Cells;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kRows = 14;
constexpr int64_t kColumns = 12;

TEST(Mask, CanonicalFormKeepsCells) {
  std::mt19937 rng(1);
  for (int n = 0; n < 2000; ++n) {
    const auto slices = reference::random_disjoint_slices(rng, kRows, kColumns, 12);
    const Mask mask(kRows, kColumns, slices);
    const Cells cells(kRows, kColumns, slices);
    EXPECT_EQ(Cells(kRows, kColumns, mask.slices()), cells);
    EXPECT_EQ(mask.area(), cells.area());
    EXPECT_LE(mask.slices().size(), slices.size());
    EXPECT_EQ(Mask(kRows, kColumns, {mask.slices().begin(), mask.slices().end()}), mask);
  }
}

TEST(Mask, OrderOfSlicesDoesNotMatter) {
  std::mt19937 rng(2);
  for (int n = 0; n < 500; ++n) {
    auto slices = reference::random_disjoint_slices(rng, kRows, kColumns, 6);
    const Mask mask(kRows, kColumns, slices);
    std::shuffle(slices.begin(), slices.end(), rng);
    const Mask other(kRows, kColumns, slices);
    EXPECT_EQ(mask, other);
    EXPECT_EQ(mask.hash(), other.hash());
  }
}

TEST(Mask, PiecesOfOneSliceMergeBack) {
  std::mt19937 rng(3);
  for (int n = 0; n < 2000; ++n) {
    const AttnSlice slice = canonical(reference::random_slice(rng, kRows, kColumns));
    if (slice.q_range.empty()) continue;
    // A grid of cuts, as dispatch and stages make them.
    const int64_t row = std::uniform_int_distribution<int64_t>(0, kRows)(rng);
    const int64_t column = std::uniform_int_distribution<int64_t>(0, kColumns)(rng);
    std::vector<AttnSlice> pieces;
    for (const Range rows : {Range{0, row}, Range{row, kRows}}) {
      pieces.push_back(cut_rows(slice, rows));
    }
    EXPECT_THAT(Mask(kRows, kColumns, pieces).slices(), testing::ElementsAre(slice));
    pieces.clear();
    for (const Range columns : {Range{0, column}, Range{column, kColumns}})
      pieces.push_back(cut_columns(slice, columns));
    const Mask cut(kRows, kColumns, pieces);
    EXPECT_EQ(Cells(kRows, kColumns, cut.slices()), Cells(kRows, kColumns, {{slice}}));
  }
}

TEST(Mask, RectanglesMergeFromAGridOfCuts) {
  std::vector<AttnSlice> pieces;
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 3; ++j) pieces.push_back(AttnSlice::full({i * 3, i * 3 + 3}, {j * 4, j * 4 + 4}));
  }
  EXPECT_THAT(Mask(12, 12, pieces).slices(), testing::ElementsAre(AttnSlice::full({0, 12}, {0, 12})));
}

TEST(Mask, FindsOverlapsThatBruteForceFinds) {
  std::mt19937 rng(4);
  int num_overlapping = 0;
  for (int n = 0; n < 5000; ++n) {
    std::vector<AttnSlice> slices;
    for (int i = 0; i < 5; ++i) slices.push_back(reference::random_slice(rng, kRows, kColumns));
    const OverlapPair pair = find_overlap(slices);
    const bool expected = Cells(kRows, kColumns, slices).has_double();
    num_overlapping += expected;
    ASSERT_EQ(pair.first >= 0, expected);
    if (expected) {
      ASSERT_LT(pair.first, pair.second);
      EXPECT_TRUE(Cells(kRows, kColumns, {{slices[pair.first], slices[pair.second]}}).has_double());
    }
  }
  EXPECT_GT(num_overlapping, 500);
  EXPECT_LT(num_overlapping, 4900);
}

// Blocks come row by row and are looked at in another way than other slices.
TEST(Mask, FindsOverlapsOfBlocksThatBruteForceFinds) {
  std::mt19937 rng(5);
  int num_overlapping = 0;
  for (int n = 0; n < 3000; ++n) {
    std::vector<AttnSlice> slices;
    for (int64_t q = 0; q < kRows; q += 3) {
      for (int64_t k = 0; k < kColumns; k += 4) {
        if (rng() % 4 != 0) continue;
        const auto height = static_cast<int64_t>(rng() % 12 == 0 ? 6 : 3), width = int64_t{rng() % 24 == 0 ? 5 : 4};
        slices.push_back(AttnSlice::full({q, std::min(q + height, kRows)}, {k, std::min(k + width, kColumns)}));
      }
      if (rng() % 8 == 0) std::reverse(slices.end() - std::min<int64_t>(2, std::ssize(slices)), slices.end());
    }
    const bool expected = Cells(kRows, kColumns, slices).has_double();
    num_overlapping += expected;
    ASSERT_EQ(find_overlap(slices).first >= 0, expected) << n;
  }
  EXPECT_GT(num_overlapping, 200);
  EXPECT_LT(num_overlapping, 2700);
}

TEST(Mask, CopiesShareMemoryAndClonesDoNot) {
  const Mask mask(8, 8, {AttnSlice::full({0, 4}, {0, 4}), AttnSlice::causal({4, 8}, {4, 8})});
  const Mask copy = mask, padded = mask.padded(9, 9), clone = mask.cloned();
  EXPECT_EQ(copy.slices().data(), mask.slices().data());
  EXPECT_EQ(padded.slices().data(), mask.slices().data());
  EXPECT_NE(clone.slices().data(), mask.slices().data());
  EXPECT_EQ(clone, mask);
  EXPECT_EQ(clone.hash(), mask.hash());
  EXPECT_EQ(Mask().cloned(), Mask(0, 0, {}));
  EXPECT_EQ(Mask().hash(), Mask(0, 0, {}).hash());
}

TEST(Mask, OverlapBelowTheLastStartIsFound) {
  // 0 and 2 meet only after 1, which lies between them, has ended.
  const std::vector<AttnSlice> slices{{{0, 10}, {0, 20}, kOpenMinDiag, 0}, {{0, 3}, {3, 6}}, {{0, 10}, {6, 12}}};
  EXPECT_GE(find_overlap(slices).first, 0);
}

TEST(Mask, RejectsBadSlicesByIndex) {
  EXPECT_THAT([] { Mask(8, 8, {AttnSlice::full({0, 4}, {0, 4}), AttnSlice::full({3, 5}, {3, 5})}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("twice (got slices[0]=[0, 4) x [0, 4)")));
  EXPECT_THAT([] { Mask(8, 8, {AttnSlice::full({0, 9}, {0, 4})}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("slices[0].q_range must lie in [0, 8) (got [0, 9))")));
  EXPECT_THAT([] { Mask(8, 8, {AttnSlice::full({0, 2}, {4, 3})}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("slices[0].k_range")));
  EXPECT_THAT([] { Mask(-1, 8, {}); }, ThrowsMessage<InvalidArgument>(HasSubstr("seqlen_q=-1")));
}

TEST(Mask, PaddingAddsRowsThatSeeNothing) {
  const Mask mask(4, 4, {AttnSlice::causal({0, 4}, {0, 4})});
  const Mask padded = mask.padded(8, 8);
  EXPECT_EQ(padded.area(), mask.area());
  EXPECT_EQ(padded, Mask(8, 8, {AttnSlice::causal({0, 4}, {0, 4})}));
  EXPECT_NE(padded.hash(), mask.hash());
  EXPECT_THROW(mask.padded(3, 4), InvalidArgument);
}

}  // namespace
}  // namespace tangram
