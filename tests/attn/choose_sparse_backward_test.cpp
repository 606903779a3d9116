// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// For which masks transfers had better end before attention begins.
#include "schedule/choose_sparse_backward.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "attn/sm90/kernel_table.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

constexpr int64_t kRows = 4096;

AttnShape shape_of(int head_dim = 128) { return {kRows, kRows, 64, 8, head_dim, head_dim, DType::kBFloat16}; }

/// Every eighth block of a row, at other places in each row, and the diagonal.
std::vector<AttnSlice> blocks_of(int64_t block, int64_t shift = 0) {
  std::vector<AttnSlice> slices;
  for (int64_t row = 0; row < kRows / block; ++row) {
    for (int64_t key = 0; key + 1 < kRows / block; ++key) {
      if (key != row && (row * 5 + key * 3) % 8 != 0) continue;
      slices.push_back(
          AttnSlice::full({row * block, (row + 1) * block}, {key * block + shift, (key + 1) * block + shift}));
    }
  }
  return slices;
}

bool wants(std::span<const AttnSlice> slices, int head_dim = 128) {
  const AttnShape shape = shape_of(head_dim);
  const schedule::KernelTable kernels = sm90::kernel_table(head_dim, head_dim);
  return schedule::SparseBackwardChoice({&slices, 1}, shape, kernels).is_likely();
}

TEST(ChooseSparseBackward, WhereSmallBlocksAreGathered) {
  for (const int64_t block : {16, 32, 64}) {
    EXPECT_TRUE(wants(blocks_of(block))) << block;
    EXPECT_TRUE(wants(blocks_of(block), 64)) << block;
  }
  EXPECT_FALSE(wants(blocks_of(128)));
  EXPECT_FALSE(wants(blocks_of(64, 8))) << "groups of keys that are seen in part";
  EXPECT_FALSE(wants(blocks_of(64), 96)) << "no such kernels";
}

TEST(ChooseSparseBackward, NotWhereKernelsWait) {
  EXPECT_FALSE(wants(causal_mask(kRows, kRows).slices()));
  EXPECT_FALSE(wants(full_mask(kRows, kRows).slices()));
  EXPECT_FALSE(wants(varlen_mask(std::vector<int64_t>{0, 1000, 1330, 4096}, true).slices()));
  EXPECT_FALSE(wants(sliding_window_mask(kRows, {1024, 0}).slices()));
  EXPECT_FALSE(wants({}));
}

}  // namespace
}  // namespace tangram
