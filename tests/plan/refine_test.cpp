// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/refine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/dispatch.hpp"
#include "reference/cells.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

std::vector<int64_t> random_documents(std::mt19937& rng, int64_t seqlen) {
  std::vector<int64_t> cu{0};
  while (cu.back() < seqlen) cu.push_back(std::min(seqlen, cu.back() + 1 + static_cast<int64_t>(rng() % 60)));
  return cu;
}

Mask random_mask(std::mt19937& rng, int64_t seqlen) {
  switch (rng() % 6) {
    case 0: return varlen_mask(random_documents(rng, seqlen), true);
    case 1: return sliding_window_mask(random_documents(rng, seqlen), {7, static_cast<int64_t>(rng() % 3)});
    case 2: return block_causal_mask(random_documents(rng, seqlen), 16);
    case 3: {  // rows see the prefix and what lies before them of their continuation
      const int64_t prefix = static_cast<int64_t>(rng() % static_cast<uint64_t>(seqlen));
      std::vector<int64_t> lengths;
      for (const std::vector<int64_t> cu = random_documents(rng, seqlen - prefix); lengths.size() + 1 < cu.size();) {
        lengths.push_back(cu[lengths.size() + 1] - cu[lengths.size()]);
      }
      return shared_prefix_mask(prefix, lengths);
    }
    case 4: return Mask(seqlen, seqlen, reference::random_disjoint_slices(rng, seqlen, seqlen, 40));
    default: return Mask(seqlen, seqlen, reference::random_disjoint_slices(rng, seqlen, seqlen, 6));
  }
}

std::vector<RankRun> runs_of(const std::vector<int>& ranks) {
  std::vector<RankRun> map;
  for (size_t c = 0; c < ranks.size(); ++c) map.push_back({static_cast<int>(c), static_cast<int>(c) + 1, ranks[c]});
  return map;
}

std::vector<int> ranks_of(const std::vector<RankRun>& map) {
  std::vector<int> ranks;
  for (const RankRun& run : map) ranks.insert(ranks.end(), static_cast<size_t>(run.size()), run.rank);
  return ranks;
}

TEST(Refiner, CountsRemoteRowsExactly) {
  std::mt19937 rng(9);
  for (int n = 0; n < 300; ++n) {
    const int cp_size = 1 + static_cast<int>(rng() % 5);
    const int64_t chunk_size = 1 + static_cast<int64_t>(rng() % 9);
    const int64_t num_chunks = cp_size * (1 + static_cast<int64_t>(rng() % 8));
    const Mask mask = random_mask(rng, num_chunks * chunk_size);
    const Dispatch dispatch{cp_size, chunk_size, dispatch_random(num_chunks, cp_size, rng())};
    Refiner refiner(mask.slices(), true, chunk_size, num_chunks, cp_size);
    const Refiner::Score score = refiner.score(runs_of(dispatch.rank_of_chunk.expanded()), 0);
    ASSERT_EQ(score.remote_rows, rows_lower_bound(mask, dispatch, dispatch)) << n;
  }
}

// Keys on a coarse grid are counted by bits.
TEST(Refiner, CountsRemoteRowsOfScatteredBlocksExactly) {
  std::mt19937 rng(10);
  for (int n = 0; n < 60; ++n) {
    const int cp_size = 2 + static_cast<int>(rng() % 5);
    const int64_t block = int64_t{4} << rng() % 3, chunk_size = n % 3 == 0 ? block / 2 : block;
    const int64_t num_chunks = cp_size * (8 + static_cast<int64_t>(rng() % 40));
    const int64_t rows = num_chunks * chunk_size;
    std::vector<AttnSlice> slices;
    for (int64_t q = 0; q < rows; q += block) {
      for (int64_t k = 0; k < rows; k += block) {
        if (k != q && rng() % 6 != 0) continue;
        slices.push_back(AttnSlice::full({q, std::min(q + block, rows)}, {k, std::min(k + block, rows)}));
      }
    }
    const Mask mask(rows, rows, slices);
    const Dispatch dispatch{cp_size, chunk_size, dispatch_random(num_chunks, cp_size, rng())};
    Refiner refiner(mask.slices(), true, chunk_size, num_chunks, cp_size);
    const Refiner::Score score = refiner.score(runs_of(dispatch.rank_of_chunk.expanded()), 0);
    ASSERT_EQ(score.remote_rows, rows_lower_bound(mask, dispatch, dispatch)) << n;
  }
}

// More than a hundred pieces are counted in another way than a few.
TEST(Refiner, CountsRemoteRowsOfManyPiecesExactly) {
  std::mt19937 rng(21);
  for (int n = 0; n < 40; ++n) {
    const int cp_size = 2 + static_cast<int>(rng() % 90);
    const int64_t num_chunks = cp_size * (1 + 300 / cp_size);
    const Mask mask = n % 2 == 0 ? causal_mask(num_chunks * 2, num_chunks * 2) : random_mask(rng, num_chunks * 2);
    const Dispatch dispatch{cp_size, 2, dispatch_random(num_chunks, cp_size, rng())};
    Refiner refiner(mask.slices(), true, 2, num_chunks, cp_size);
    const Refiner::Score score = refiner.score(runs_of(dispatch.rank_of_chunk.expanded()), 0);
    ASSERT_EQ(score.remote_rows, rows_lower_bound(mask, dispatch, dispatch)) << n;
  }
}

TEST(Refiner, CountsWhatCutsInsideTilesCost) {
  std::mt19937 rng(13);
  constexpr int kTile = 8;
  for (int n = 0; n < 200; ++n) {
    const int cp_size = 1 + static_cast<int>(rng() % 4);
    const int num_rows = cp_size * (8 + static_cast<int>(rng() % 60));
    const std::vector<int64_t> cu = random_documents(rng, num_rows);
    const Mask mask = varlen_mask(cu, true);
    std::vector<int> ranks;
    while (static_cast<int>(ranks.size()) < num_rows) {
      ranks.insert(ranks.end(), 1 + rng() % 12, static_cast<int>(rng() % static_cast<uint32_t>(cp_size)));
    }
    ranks.resize(static_cast<size_t>(num_rows));
    int64_t keys = 0;  // seen where documents are cut elsewhere than at multiples of a tile
    for (size_t d = 0; d + 1 < cu.size(); ++d) {
      for (int64_t row = cu[d] + 1; row < cu[d + 1]; ++row) {
        const bool is_cut = ranks[static_cast<size_t>(row)] != ranks[static_cast<size_t>(row - 1)];
        if (is_cut && (row - cu[d]) % kTile != 0) keys += row - cu[d];
      }
    }
    Refiner free(mask.slices(), true, 1, num_rows, cp_size);
    Refiner priced(mask.slices(), true, 1, num_rows, cp_size, {kTile, 3});
    ASSERT_EQ(priced.score(runs_of(ranks), 0).remote_rows, free.score(runs_of(ranks), 0).remote_rows + 3 * keys) << n;
  }
}

TEST(Refiner, OnlyImprovesKeepsCountsAndRepeats) {
  std::mt19937 rng(10);
  for (int n = 0; n < 60; ++n) {
    const int cp_size = 2 + static_cast<int>(rng() % 4);
    const int64_t chunk_size = 4;
    const int64_t num_chunks = cp_size * (4 + static_cast<int64_t>(rng() % 12));
    const Mask mask = random_mask(rng, num_chunks * chunk_size);
    const std::vector<int> start = dispatch_random(num_chunks, cp_size, rng());
    // Any area is balanced enough, so that rows alone decide.
    const RefineOptions options{.max_work = 200'000, .tolerance = 100};
    Refiner refiner(mask.slices(), true, chunk_size, num_chunks, cp_size);
    std::vector<RankRun> refined = runs_of(start);
    const Refiner::Score score = refiner.run(refined, options);
    const Dispatch dispatch{cp_size, chunk_size, ranks_of(refined)};
    for (int rank = 0; rank < cp_size; ++rank) {
      ASSERT_EQ(std::count(dispatch.rank_of_chunk.begin(), dispatch.rank_of_chunk.end(), rank), num_chunks / cp_size);
    }
    const int64_t rows = refiner.score(refined, 100).remote_rows;
    EXPECT_EQ(score.remote_rows, rows);
    EXPECT_LE(rows, refiner.score(runs_of(start), 100).remote_rows);
    ASSERT_EQ(rows, rows_lower_bound(mask, dispatch, dispatch));
    Refiner again(mask.slices(), true, chunk_size, num_chunks, cp_size);
    std::vector<RankRun> repeated = runs_of(start);
    again.run(repeated, options);
    ASSERT_EQ(repeated, refined);
  }
}

// Moves in prefix trees are counted by their two ranks, cuts by the ends of moves: NOTE [open keys].
TEST(Refiner, KeepsCountsOfTreesWithCuts) {
  std::mt19937 rng(31);
  for (int n = 0; n < 80; ++n) {
    const int cp_size = 2 + static_cast<int>(rng() % 6);
    const int64_t num_chunks = cp_size * (8 + static_cast<int64_t>(rng() % 24)), num_rows = 2 * num_chunks;
    std::vector<AttnSlice> slices;
    for (int64_t root = 0; root < num_rows;) {  // trees that begin inside of chunks, up to three deep
      const int64_t end = std::min(num_rows, root + 20 + static_cast<int64_t>(rng() % 60));
      for (Range open{root, end}; !open.empty();) {
        const Range own{open.begin, std::min(open.end, open.begin + 1 + static_cast<int64_t>(rng() % 20))};
        slices.push_back(AttnSlice::causal(own, own));
        const bool goes_on = rng() % 3 != 0;
        if (own.end < open.end && goes_on) slices.push_back(AttnSlice::full({own.end, open.end}, own));
        open.begin = own.end;
      }
      root = end;
    }
    const Mask mask(num_rows, num_rows, slices);
    Refiner refiner(mask.slices(), true, 2, num_chunks, cp_size, {8, 0.5 * static_cast<double>(n % 5)});
    std::vector<RankRun> map = runs_of(dispatch_random(num_chunks, cp_size, rng()));
    const Refiner::Score score = refiner.run(map, {.max_work = 200'000, .is_loose_at_first = n % 2 == 0});
    EXPECT_EQ(score.remote_rows, refiner.score(map, 0.005).remote_rows) << n;
    Refiner free(mask.slices(), true, 2, num_chunks, cp_size);
    const Dispatch dispatch{cp_size, 2, ranks_of(map)};
    EXPECT_EQ(free.score(map, 0).remote_rows, rows_lower_bound(mask, dispatch, dispatch)) << n;
  }
}

TEST(Refiner, GivesEveryRankItsRows) {
  // Whatever the lengths of the documents and however unequally they are sharded at first.
  std::mt19937 rng(12);
  for (int n = 0; n < 60; ++n) {
    const int cp_size = 2 + static_cast<int>(rng() % 6);
    const int num_chunks = cp_size * (4 + static_cast<int>(rng() % 60));
    const Mask mask = random_mask(rng, num_chunks);
    std::vector<RankRun> map{{0, num_chunks / 2, 0}, {num_chunks / 2, num_chunks, 1}};
    Refiner refiner(mask.slices(), true, 1, num_chunks, cp_size);
    refiner.run(map, {.max_work = 100'000, .tolerance = 0.05});
    const std::vector<int> ranks = ranks_of(map);
    ASSERT_EQ(static_cast<int>(ranks.size()), num_chunks);
    for (int rank = 0; rank < cp_size; ++rank) {
      ASSERT_EQ(std::count(ranks.begin(), ranks.end(), rank), num_chunks / cp_size) << n;
    }
  }
}

TEST(Refiner, BringsScatteredDocumentsTogether) {
  // Sixteen documents of four chunks sharded chunk by chunk: every one can be whole, with equal areas.
  std::vector<int64_t> cu{0};
  for (int d = 0; d < 16; ++d) cu.push_back(cu.back() + 64);
  const Mask mask = varlen_mask(cu, true);
  Refiner refiner(mask.slices(), true, 16, 64, 4);
  std::vector<RankRun> refined = runs_of(dispatch_zigzag(64, 4));
  refiner.run(refined, {.max_work = 5'000'000, .tolerance = 0.001});
  const Refiner::Score score = refiner.score(refined, 0.001);
  EXPECT_EQ(score.remote_rows, 0);
  EXPECT_EQ(score.overload, 0);
}

TEST(Refiner, StopsWhereNothingIsLeftToGain) {
  std::vector<int64_t> cu{0};
  for (int d = 0; d < 16; ++d) cu.push_back(cu.back() + 64);
  const Mask mask = varlen_mask(cu, true);
  Refiner refiner(mask.slices(), true, 16, 64, 4);
  std::vector<RankRun> refined = runs_of(dispatch_zigzag(64, 4));
  // Hours of work, if it were done.
  refiner.run(refined, {.max_work = int64_t{1} << 50, .tolerance = 0.001});
  EXPECT_EQ(refiner.score(refined, 0.001).remote_rows, 0);
}

TEST(Refiner, MendsBalance) {
  const Mask mask = causal_mask(1024, 1024);
  Refiner refiner(mask.slices(), true, 16, 64, 4);
  const std::vector<RankRun> start = runs_of(dispatch_sequential(64, 4));
  EXPECT_GT(refiner.score(start, 0.01).overload, 0.7);
  std::vector<RankRun> mended = start;
  refiner.run(mended, {.max_work = 2'000'000, .tolerance = 0.01});
  EXPECT_EQ(refiner.score(mended, 0.01).overload, 0);
}

}  // namespace
}  // namespace tangram
