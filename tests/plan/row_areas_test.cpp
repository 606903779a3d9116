// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/row_areas.hpp"

#include <gtest/gtest.h>

#include <random>

#include "reference/cells.hpp"
#include "tangram/mask.hpp"

namespace tangram {
namespace {

TEST(RowAreas, CountVisibleCells) {
  std::mt19937 rng(3);
  for (int n = 0; n < 300; ++n) {
    const int64_t seqlen_q = 1 + static_cast<int64_t>(rng() % 50);
    const int64_t seqlen_k = 1 + static_cast<int64_t>(rng() % 50);
    const Mask mask(seqlen_q, seqlen_k, reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 8));
    const RowAreas areas(mask.slices(), seqlen_q);
    int64_t cells = 0;
    for (int64_t i = 0; i <= seqlen_q; ++i) {
      ASSERT_EQ(areas.before(i), cells) << n << " row " << i;
      int64_t keys = 0;
      for (const AttnSlice& slice : mask.slices()) {
        if (slice.q_range.contains(i)) keys += slice.keys_of(i).size();
      }
      ASSERT_EQ(areas.keys_of(i), keys) << n << " row " << i;
      cells += keys;
    }
  }
}

TEST(RowAreas, OfAMaskThatShowsNothingAreZero) {
  const RowAreas areas({}, 1000);
  EXPECT_EQ(areas.before(0), 0);
  EXPECT_EQ(areas.before(1000), 0);
}

}  // namespace
}  // namespace tangram
