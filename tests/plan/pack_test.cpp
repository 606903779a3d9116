// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/pack.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::Each;
using testing::ElementsAre;

std::vector<int> documents_per_rank(const std::vector<int>& ranks, int cp_size) {
  std::vector<int> count(static_cast<size_t>(cp_size));
  for (const int rank : ranks) ++count.at(static_cast<size_t>(rank));
  return count;
}

std::vector<int64_t> loads(const PackProblem& problem, const std::vector<int>& ranks) {
  std::vector<int64_t> load(static_cast<size_t>(problem.cp_size));
  for (size_t c = 0; c < ranks.size(); ++c) load[static_cast<size_t>(ranks[c])] += problem.areas[c];
  return load;
}

TEST(Pack, BlocksAreDocumentsAndBordersGoBack) {
  const std::vector<int64_t> cu{0, 10, 16, 17, 40};
  const PackProblem problem = make_pack_problem(varlen_mask(cu, true).slices(), 4, 10, 2);
  std::vector<std::pair<int, int>> blocks;
  for (const ChunkRun& block : problem.blocks) blocks.emplace_back(block.begin, block.end);
  // Rows 8..11 hold the end of the first document, row 16 alone is the third.
  EXPECT_THAT(blocks, ElementsAre(std::pair{0, 3}, std::pair{3, 4}, std::pair{4, 5}, std::pair{5, 10}));
  EXPECT_EQ(problem.area({0, 10}), std::accumulate(problem.areas.begin(), problem.areas.end(), int64_t{0}));
}

// Each of its blocks was packed by itself.
TEST(Pack, BlockCausalDocumentIsOneBlock) {
  std::vector<AttnSlice> slices;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 24}, {24, 40}}) {
    for (int64_t row = begin; row < end; row += 8) slices.push_back(AttnSlice::full({row, row + 8}, {begin, row + 8}));
  }
  const PackProblem problem = make_pack_problem(Mask(40, 40, slices).slices(), 8, 5, 1);
  std::vector<std::pair<int, int>> blocks;
  for (const ChunkRun& block : problem.blocks) blocks.emplace_back(block.begin, block.end);
  EXPECT_THAT(blocks, ElementsAre(std::pair{0, 3}, std::pair{3, 5}));
}

TEST(Pack, RowsThatSeeNothingAreABlockToo) {
  const Mask mask = Mask(16, 16, {AttnSlice::causal({4, 8}, {4, 8})});
  const PackProblem problem = make_pack_problem(mask.slices(), 4, 4, 2);
  int covered = 0;
  for (const ChunkRun& block : problem.blocks) {
    EXPECT_EQ(block.begin, covered);
    covered = block.end;
  }
  EXPECT_EQ(covered, 4);
}

TEST(Pack, OneCausalBlockIsANestedZigzag) {
  const PackProblem problem = make_pack_problem(causal_mask(128, 128).slices(), 8, 16, 4);
  const std::vector<int> ranks = pack(problem, {});
  EXPECT_THAT(ranks, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0));
}

TEST(Pack, WholeBlocksGoToTheLeastLoaded) {
  // Lengths in chunks: 4 4 2 2 2 2 on two ranks of 8.
  const std::vector<int64_t> cu{0, 32, 64, 80, 96, 112, 128};
  const PackProblem problem = make_pack_problem(varlen_mask(cu, true).slices(), 8, 16, 2);
  const std::vector<int> ranks = pack(problem, {.min_whole = 2});
  for (const ChunkRun& block : problem.blocks) {
    for (int c = block.begin; c < block.end; ++c) {
      EXPECT_EQ(ranks[static_cast<size_t>(c)], ranks[static_cast<size_t>(block.begin)]);
    }
  }
  EXPECT_EQ(loads(problem, ranks)[0], loads(problem, ranks)[1]);
}

TEST(Pack, RandomDocumentsAreAssignedEvenly) {
  std::mt19937 rng(6);
  for (int n = 0; n < 300; ++n) {
    const int cp_size = 1 + static_cast<int>(rng() % 8);
    const int64_t num_chunks = cp_size * (1 + static_cast<int64_t>(rng() % 24));
    const int64_t seqlen = num_chunks * 8;
    std::vector<int64_t> cu{0};
    const uint32_t longest = 1 + rng() % 400;
    while (cu.back() < seqlen) cu.push_back(std::min(seqlen, cu.back() + 1 + static_cast<int64_t>(rng() % longest)));
    const PackProblem problem = make_pack_problem(varlen_mask(cu, rng() % 2 == 0).slices(), 8, num_chunks, cp_size);
    const PackSetting setting{static_cast<int>(rng() % 8), static_cast<double>(rng() % 4)};
    const std::vector<int> ranks = pack(problem, setting);
    ASSERT_THAT(documents_per_rank(ranks, cp_size), Each(problem.per_rank()));
    ASSERT_EQ(pack(problem, setting), ranks);
  }
}

// A rank's share has two ends inside documents, where areas jump from chunk to chunk: each misses by a chunk at most.
TEST(Pack, FillingFromBothEndsBalances) {
  for (const int64_t length : {64, 96, 160}) {
    std::vector<int64_t> cu{0};
    while (cu.back() + length <= 4096) cu.push_back(cu.back() + length);
    if (cu.back() < 4096) cu.push_back(4096);
    const PackProblem problem = make_pack_problem(varlen_mask(cu, true).slices(), 8, 512, 8);
    const std::vector<int64_t> load = loads(problem, pack(problem, {.min_whole = 65, .density_step = 1}));
    const int64_t heaviest_chunk = *std::max_element(problem.areas.begin(), problem.areas.end());
    const int64_t mean = problem.area({0, 512}) / 8;
    EXPECT_LE(*std::max_element(load.begin(), load.end()), mean + 2 * heaviest_chunk) << length;
  }
}

}  // namespace
}  // namespace tangram
