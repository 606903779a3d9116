// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/assign_pack.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "plan/assigned_documents.hpp"
#include "plan/pack_search.hpp"
#include "support/sample.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

using reference::causal_documents;
using reference::measure;
using reference::Measured;
using reference::ranks_of;

// Documents of up to `longest` rows, some of them behind rows that belong to none; a multiple of `unit` rows in all.
std::vector<Range> documents_of_random_lengths(std::mt19937& rng, int count, int64_t longest, bool has_gaps,
                                               int64_t unit, int64_t& num_rows) {
  std::vector<Range> documents;
  num_rows = 0;
  for (int i = 0; i < count; ++i) {
    if (has_gaps && rng() % 3 == 0) num_rows += static_cast<int64_t>(rng() % 40);
    const int64_t rows = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(longest));
    documents.push_back({num_rows, num_rows + rows});
    num_rows += rows;
  }
  const int64_t rest = (unit - num_rows % unit) % unit;
  num_rows += rest;
  if (!has_gaps) documents.back().end += rest;
  return documents;
}

/// A causal pack of documents whose lengths are about log-normal, alike with every standard library.
Mask pack_of(int64_t rows, int documents, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<double> ends{0};
  for (int i = 0; i < documents; ++i) {
    double normal = -6;
    for (int n = 0; n < 12; ++n) normal += static_cast<double>(rng() >> 11) * 0x1p-53;
    ends.push_back(ends.back() + std::exp(normal));
  }
  std::vector<int64_t> borders;
  for (const double end : ends) {
    const int64_t border = std::llround(end / ends.back() * static_cast<double>(rows));
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
  return varlen_mask(borders, true);
}

TEST(AssignPack, RanksOfRandomPacksHoldWhatTheyMay) {
  std::mt19937 rng(3);
  int num_found = 0;
  constexpr int kCases = 120;
  for (int n = 0; n < kCases; ++n) {
    const int cp_size = 3 + static_cast<int>(rng() % 6);
    const int count = 3 + static_cast<int>(rng() % 40);
    int64_t num_rows = 0;
    const auto documents =
        documents_of_random_lengths(rng, count, n % 4 == 0 ? 4000 : 600, n % 2 == 1, 64 * int64_t{cp_size}, num_rows);
    const double tolerance = n % 3 == 0 ? 0.005 : 0.01;
    const CutCost cuts{int64_t{8} << rng() % 5, static_cast<double>(rng() % 2)};
    const auto map = assign_pack(causal_documents(documents), num_rows, cp_size, tolerance, cuts);
    if (!map) continue;
    ++num_found;
    const std::vector<int> ranks = ranks_of(*map);
    ASSERT_EQ(static_cast<int64_t>(ranks.size()), num_rows) << n;
    const Measured is = measure(documents, ranks, cp_size, cuts.tile_rows);
    int64_t area = 0;
    for (const int64_t of_rank : is.area) area += of_rank;
    const auto most = static_cast<int64_t>((1 + tolerance) * static_cast<double>(area / cp_size));
    EXPECT_LE(*std::max_element(is.area.begin(), is.area.end()), most) << n;
    for (const int64_t rows : is.rows) EXPECT_EQ(rows * cp_size, num_rows) << n;
    for (size_t i = 1; i < map->size(); ++i) EXPECT_NE((*map)[i - 1].rank, (*map)[i].rank) << n;  // joined
  }
  EXPECT_GE(num_found, kCases * 9 / 10);
}

// Which is kept from move to move.
TEST(AssignPack, PriceIsThatOfRowsThatMoveAndOfCuts) {
  std::mt19937 rng(4);
  for (int n = 0; n < 60; ++n) {
    const int cp_size = 2 + static_cast<int>(rng() % 7);
    int64_t num_rows = 0;
    const auto documents = documents_of_random_lengths(rng, 2 + static_cast<int>(rng() % 12), 800, n % 2 == 1,
                                                       32 * int64_t{cp_size}, num_rows);
    const std::vector<AttnSlice> slices = causal_documents(documents);
    const CausalPack pack(slices, num_rows, cp_size, 0.02, {16, 0.5});
    constexpr int64_t kChunk = 32;
    std::vector<int> start;
    for (int64_t chunk = 0; chunk < num_rows / kChunk; ++chunk) {
      start.push_back(static_cast<int>(rng() % static_cast<unsigned>(cp_size)));
    }
    PackSearch search(pack);
    search.begin(start, kChunk, static_cast<uint64_t>(n), n % 3 == 0 ? 0 : 400);
    search.finish();
    const Measured is = measure(documents, ranks_of(search.runs()), cp_size, 16);
    EXPECT_EQ(search.price(), static_cast<double>(is.moved) + 0.5 * static_cast<double>(is.keys_at_cuts)) << n;
  }
}

TEST(AssignPack, TakesOnlyPacksOfFewRanks) {
  const auto documents = causal_documents({{0, 1024}, {1024, 4096}});
  const CutCost cuts{128, 1};
  EXPECT_FALSE(assign_pack(documents, 4096, 16, 0.01, cuts).has_value());             // many ranks
  EXPECT_FALSE(assign_pack(documents, int64_t{1} << 20, 4, 0.01, cuts).has_value());  // many rows
  EXPECT_FALSE(assign_pack(documents, 4096, 4, 0.01, {96, 1}).has_value());           // tiles of no power of two
  EXPECT_FALSE(assign_pack(documents, 3 * 65521, 3, 0.01, cuts).has_value());         // chunks of a row, being prime
}

// Eight long searches of a sixth, or twelve of a sixteenth, moved as many rows.
TEST(AssignPack, PlansMoveAsFewRowsAsLongSearchesDid) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  const struct {
    int64_t rows;
    int documents, cp_size;
    int64_t moved;  // by these, of 20 packs
  } cases[] = {
      {32768, 16, 4, 203549}, {65536, 5, 4, 1195615},  {131072, 48, 4, 214637},
      {32768, 16, 8, 589418}, {131072, 48, 8, 768736},
  };
  for (const auto& c : cases) {
    int64_t moved = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      DistAttnConfig config;
      config.cp_size = c.cp_size;
      config.heads = {64, 8, 128, 128, DType::kBFloat16};
      const Plan plan = make_plan(pack_of(c.rows, c.documents, seed), config);
      moved += plan.rows_moved();
      EXPECT_LE(plan.balance(), c.rows / c.cp_size >= 32768 ? 1.0049 : 1.0096) << seed;
    }
    EXPECT_LE(static_cast<double>(moved), 1.02 * static_cast<double>(c.moved)) << c.rows << " over " << c.cp_size;
  }
}

}  // namespace
}  // namespace tangram
