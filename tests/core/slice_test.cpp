// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/slice.hpp"

#include <gtest/gtest.h>

#include "reference/cells.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using reference::Cells;

constexpr int64_t kNumQueries = 13;
constexpr int64_t kNumKeys = 17;
constexpr int kNumRandomSlices = 3000;

TEST(Slice, MaskTypesShowTheirPublishedCells) {
  const Range q{2, 6}, k{3, 9};
  for (int64_t i = q.begin; i < q.end; ++i) {
    for (int64_t j = k.begin; j < k.end; ++j) {
      const bool right = j - (k.end - 1) <= i - (q.end - 1);
      const bool left = j - k.begin >= i - q.begin;
      EXPECT_TRUE(AttnSlice::from_type(MaskType::kFull, q, k).visible(i, j));
      EXPECT_EQ(AttnSlice::from_type(MaskType::kCausal, q, k).visible(i, j), right);
      EXPECT_EQ(AttnSlice::from_type(MaskType::kInvCausal, q, k).visible(i, j), left);
      EXPECT_EQ(AttnSlice::from_type(MaskType::kBiCausal, q, k).visible(i, j), left && right);
    }
  }
  EXPECT_THROW(AttnSlice::from_type(static_cast<MaskType>(4), q, k), InvalidArgument);
}

TEST(Slice, AreaEqualsCountedCells) {
  std::mt19937 rng(1);
  for (int n = 0; n < kNumRandomSlices; ++n) {
    const AttnSlice slice = reference::random_slice(rng, kNumQueries, kNumKeys);
    EXPECT_EQ(area(slice), Cells(kNumQueries, kNumKeys, {{slice}}).area()) << to_string(slice);
  }
}

TEST(Slice, AreaOfFourMillionRowsDoesNotOverflow) {
  const int64_t n = int64_t{1} << 22;
  EXPECT_EQ(area(AttnSlice::causal({0, n}, {0, n})), n * (n + 1) / 2);
}

TEST(Slice, CanonicalKeepsCellsAndTrims) {
  std::mt19937 rng(2);
  for (int n = 0; n < kNumRandomSlices; ++n) {
    const AttnSlice slice = reference::random_slice(rng, kNumQueries, kNumKeys);
    const AttnSlice result = canonical(slice);
    EXPECT_EQ(Cells(kNumQueries, kNumKeys, {{slice}}), Cells(kNumQueries, kNumKeys, {{result}})) << to_string(slice);
    EXPECT_EQ(canonical(result), result) << to_string(slice);
    for (int64_t i = result.q_range.begin; i < result.q_range.end; ++i) EXPECT_FALSE(result.keys_of(i).empty());
    for (int64_t j = result.k_range.begin; j < result.k_range.end; ++j) EXPECT_FALSE(result.queries_of(j).empty());
  }
}

TEST(Slice, EqualCellsHaveEqualCanonicalForm) {
  // One row of a causal slice is a full rectangle; a bound that cuts nothing is left open.
  EXPECT_EQ(canonical({{4, 5}, {0, 9}, kOpenMinDiag, 2}), AttnSlice::full({4, 5}, {0, 7}));
  EXPECT_EQ(canonical({{0, 4}, {0, 4}, -3, 3}), AttnSlice::full({0, 4}, {0, 4}));
  EXPECT_EQ(canonical({{0, 4}, {0, 4}, 4, 9}), AttnSlice{});
}

TEST(Slice, CutsAndIntersectionsKeepExactlyTheirCells) {
  std::mt19937 rng(3);
  for (int n = 0; n < kNumRandomSlices; ++n) {
    const AttnSlice a = reference::random_slice(rng, kNumQueries, kNumKeys);
    const AttnSlice b = reference::random_slice(rng, kNumQueries, kNumKeys);
    Cells rows(kNumQueries, kNumKeys), columns(kNumQueries, kNumKeys), both(kNumQueries, kNumKeys);
    for (int64_t i = 0; i < kNumQueries; ++i) {
      for (int64_t j = 0; j < kNumKeys; ++j) {
        const AttnSlice cell = AttnSlice::full({i, i + 1}, {j, j + 1});
        if (a.visible(i, j) && b.q_range.contains(i)) rows.add(cell);
        if (a.visible(i, j) && b.k_range.contains(j)) columns.add(cell);
        if (a.visible(i, j) && b.visible(i, j)) both.add(cell);
      }
    }
    EXPECT_EQ(rows, Cells(kNumQueries, kNumKeys, {{cut_rows(a, b.q_range)}}));
    EXPECT_EQ(columns, Cells(kNumQueries, kNumKeys, {{cut_columns(a, b.k_range)}}));
    EXPECT_EQ(both, Cells(kNumQueries, kNumKeys, {{intersect(a, b)}}));
  }
}

TEST(Slice, ShiftMovesTheBandAlong) {
  std::mt19937 rng(4);
  for (int n = 0; n < kNumRandomSlices; ++n) {
    const AttnSlice slice = reference::random_slice(rng, kNumQueries, kNumKeys);
    const AttnSlice moved = shifted(slice, 5, 2);
    for (int64_t i = 0; i < kNumQueries; ++i) {
      for (int64_t j = 0; j < kNumKeys; ++j) EXPECT_EQ(slice.visible(i, j), moved.visible(i + 5, j + 2));
    }
    EXPECT_EQ(shifted(moved, -5, -2), slice);
  }
}

}  // namespace
}  // namespace tangram
