// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "reference/cells.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

// The cells of drawn blocks, cell by cell.
TEST(BlockIndices, RandomBlocksShowTheirCells) {
  std::mt19937 rng(5);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1));
  };
  for (int turn = 0; turn < 200; ++turn) {
    BlockIndices blocks{draw(1, 60), draw(1, 60), draw(1, 12), draw(1, 12), {}, {}, turn % 3 == 0};
    const int64_t rows = (blocks.seqlen_q + blocks.block_q - 1) / blocks.block_q;
    const int64_t columns = (blocks.seqlen_k + blocks.block_k - 1) / blocks.block_k;
    std::vector<int32_t> csr, padded;
    std::vector<int64_t> offsets{0};
    reference::Cells expected(blocks.seqlen_q, blocks.seqlen_k);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<int32_t> seen;
      for (int32_t column = 0; column < columns; ++column) {
        if (rng() % 2 == 0) seen.push_back(column);
      }
      std::shuffle(seen.begin(), seen.end(), rng);
      for (const int32_t column : seen) {
        AttnSlice block =
            AttnSlice::full({row * blocks.block_q, std::min((row + 1) * blocks.block_q, blocks.seqlen_q)},
                            {column * blocks.block_k, std::min((column + 1) * blocks.block_k, blocks.seqlen_k)});
        if (blocks.causal) block.max_diag = blocks.seqlen_k - blocks.seqlen_q;
        expected.add(block);
      }
      csr.insert(csr.end(), seen.begin(), seen.end());
      offsets.push_back(static_cast<int64_t>(csr.size()));
      seen.resize(static_cast<size_t>(columns) + 1, -1);
      padded.insert(padded.end(), seen.begin(), seen.end());
    }
    blocks.indices = padded;
    const Mask mask = mask_from_block_indices(blocks);
    EXPECT_EQ(reference::Cells(blocks.seqlen_q, blocks.seqlen_k, mask.slices()), expected) << turn;
    blocks.indices = csr;
    blocks.offsets = offsets;
    EXPECT_EQ(mask_from_block_indices(blocks), mask) << turn;
  }
}

TEST(BlockIndices, NeighboursBecomeOneSlice) {
  const std::vector<int32_t> indices{1, 2, 0, 1, 2, 0, 2, 1, 0};
  EXPECT_EQ(mask_from_block_indices({24, 24, 8, 8, indices, {}}), full_mask(24, 24));
  EXPECT_EQ(mask_from_block_indices({24, 24, 8, 8, indices, {}, true}), causal_mask(24, 24));
  EXPECT_EQ(mask_from_block_indices({24, 24, 8, 8, indices, {}}).slices().size(), 1u);
}

TEST(BlockIndices, RefusesWhatDoesNotFit) {
  const auto refused = [](BlockIndices blocks) { EXPECT_THROW(mask_from_block_indices(blocks), InvalidArgument); };
  const std::vector<int32_t> good{0, 1, 0, -1}, twice{0, 0, 1, -1}, outside{0, 2, 1, -1}, negative{0, -2, 1, -1},
      early{-1, 0, 1, -1}, odd{0, 1, 0};
  EXPECT_NO_THROW(mask_from_block_indices({16, 16, 8, 8, good, {}}));
  for (const auto* indices : {&twice, &outside, &negative, &early, &odd}) refused({16, 16, 8, 8, *indices, {}});
  refused({16, 16, 0, 8, good, {}});
  refused({-1, 16, 8, 8, {}, {}});
  const std::vector<int64_t> few{0, 3}, decreasing{0, 3, 2}, ends{0, 1, 2};
  for (const auto* offsets : {&few, &decreasing, &ends}) refused({16, 16, 8, 8, odd, *offsets});
}

}  // namespace
}  // namespace tangram
