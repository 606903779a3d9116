// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Planning grows about linearly in slices, chunks and ranks. Whatever is quadratic in one of them would take 64 times
// as long for 8 times as much; what is held against that bound is processor time of the fastest of a few runs, so that
// other work on the machine does not matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <random>

#include "plan/refine.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kGrowth = 8;
// Linear is 8; sorting adds a little, caches that no longer hold everything up to a factor of two.
constexpr double kMostAllowed = 24;

/// Processor seconds of all threads: how many share a search depends on the processors and on what else they do.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Function>
double fastest_seconds(const Function& function) {
  double fastest = 1e30;
  for (int i = 0; i < 5; ++i) {
    const double begin = processor_seconds();
    function();
    fastest = std::min(fastest, processor_seconds() - begin);
  }
  return fastest;
}

// Documents of unlike lengths around `mean`.
std::vector<int64_t> documents(int64_t count, int64_t mean) {
  std::vector<int64_t> cu_seqlens{0};
  for (int64_t i = 0; i < count; ++i) cu_seqlens.push_back(cu_seqlens.back() + mean / 2 + i * 7919 % mean);
  const int64_t unit = 8 * 1024;
  cu_seqlens.push_back((cu_seqlens.back() / unit + 1) * unit);
  return cu_seqlens;
}

double plan_seconds(int64_t num_documents, int64_t mean_length, int64_t chunk_size) {
  const Mask mask = varlen_mask(documents(num_documents, mean_length), true);
  DistAttnConfig config;
  config.cp_size = 8;
  config.dispatch = {DispatchAlgorithm::kTangram, chunk_size, 0};
  return fastest_seconds([&] {
    const std::vector<AttnSlice> slices(mask.slices().begin(), mask.slices().end());
    const Plan plan = make_plan(Mask(mask.seqlen_q(), mask.seqlen_k(), slices), config);
    schedule::build_tile_list(plan.ranks()[0].slices, plan.q_dispatch.rows_per_rank(), plan.ranks()[0].kv_rows,
                              {128, 128});
  });
}

Plan plan_of_two(const Mask& mask, DispatchAlgorithm algorithm) {
  DistAttnConfig config;
  config.cp_size = 2;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.dispatch.algorithm = algorithm;
  return make_plan(mask, config);
}

double seconds_of_two(const Mask& mask, DispatchAlgorithm algorithm) {
  return fastest_seconds([&] { plan_of_two(mask, algorithm); });
}

// Blocks that a model has chosen are a new mask at every step too. Chunks of a row had all keys of their block once for
// each row: 150 ms instead of 2.
TEST(PlanGrowth, ScatteredBlocksAreNotCutFinerThanBlocks) {
  constexpr int64_t kBlock = 128, kCount = 128;
  std::vector<AttnSlice> slices;
  for (int64_t row = 0; row < kCount; ++row) {
    for (int64_t key = 0; key < kCount; ++key) {
      if (key != row && (row * 37 + key * 53) % 8 != 0) continue;
      slices.push_back(AttnSlice::full({row * kBlock, (row + 1) * kBlock}, {key * kBlock, (key + 1) * kBlock}));
    }
  }
  const Mask mask(kCount * kBlock, kCount * kBlock, slices);
  const double most = 30 * seconds_of_two(mask, DispatchAlgorithm::kSequential);
  EXPECT_LT(seconds_of_two(mask, DispatchAlgorithm::kAuto), most);
  const Plan plan = plan_of_two(mask, DispatchAlgorithm::kAuto);
  EXPECT_EQ(plan.q_dispatch.chunk_size % kBlock, 0);
  EXPECT_LT(plan.balance(), 1.01);
}

// Where areas of ranks differ by a little more than is tolerated, a search follows, which counts what it does: also the
// keys that many small blocks have. Without that these took 1.6 seconds, and some of 16K rows in blocks of 64 five.
TEST(PlanGrowth, SearchesOfScatteredBlocksEnd) {
  constexpr int64_t kBlock = 16, kCount = 256;
  std::mt19937 rng(1);
  std::vector<AttnSlice> slices;
  std::vector<int64_t> keys(kCount);
  std::iota(keys.begin(), keys.end(), 0);
  for (int64_t row = 0; row < kCount; ++row) {
    std::shuffle(keys.begin(), keys.end(), rng);
    std::sort(keys.begin(), keys.begin() + 30);
    for (int64_t i = 0; i < 30; ++i) {
      const int64_t key = keys[static_cast<size_t>(i)] * kBlock;
      slices.push_back(AttnSlice::full({row * kBlock, (row + 1) * kBlock}, {key, key + kBlock}));
    }
  }
  const Mask mask(kCount * kBlock, kCount * kBlock, slices);
  const double most = 60 * seconds_of_two(mask, DispatchAlgorithm::kSequential);  // about 20 times as long, once 900
  EXPECT_LT(seconds_of_two(mask, DispatchAlgorithm::kAuto), most);
}

// A pack is a new mask at every step, and two ranks leave little to search for. A document that is two slices makes it
// a mask like any other.
TEST(PlanGrowth, PacksOnTwoRanksAreSearchedForAQuarterOfTheTime) {
  std::vector<int64_t> cu_seqlens{0};
  for (const int64_t rows :
       {812, 4310, 1507, 366, 9120, 2233, 645, 1180, 3391, 505, 2790, 1022, 1764, 288, 2001, 834}) {
    cu_seqlens.push_back(cu_seqlens.back() + rows);
  }
  const int64_t total = cu_seqlens.back();
  const Mask pack = varlen_mask(cu_seqlens, true);
  std::vector<AttnSlice> slices(pack.slices().begin(), pack.slices().end());
  const int64_t seen = slices[0].q_range.end / 2;
  slices[0] = AttnSlice::full({0, seen}, {0, seen});  // a prompt that is seen whole, and what follows it
  slices.push_back(AttnSlice::causal({seen, cu_seqlens[1]}, {0, cu_seqlens[1]}));
  DistAttnConfig config;
  config.cp_size = 2;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  const auto seconds = [&](const Mask& mask) { return fastest_seconds([&] { make_plan(mask, config); }); };
  EXPECT_LT(2 * seconds(pack), seconds(Mask(total, total, slices)));
  EXPECT_LT(make_plan(pack, config).balance(), 1.01);
}

TEST(PlanGrowth, IsAboutLinearInSlices) {
  // Slices and chunks grow together: the same documents, more of them.
  const double few = plan_seconds(500, 512, 0);
  const double many = plan_seconds(static_cast<int64_t>(500 * kGrowth), 512, 0);
  EXPECT_LT(many, few * kMostAllowed) << few << " s and " << many << " s";
}

TEST(PlanGrowth, IsAboutLinearInChunks) {
  // Equal slices, cut into more chunks.
  const double coarse = plan_seconds(200, 4096, 1024);
  const double fine = plan_seconds(200, 4096, static_cast<int64_t>(1024 / kGrowth));
  EXPECT_LT(fine, coarse * kMostAllowed) << coarse << " s and " << fine << " s";
}

// 768 tokens over two ranks took as long as a million over 64, for a step of microseconds.
TEST(PlanGrowth, ShortStepsArePlannedQuickly) {
  const auto seconds = [](const std::vector<int64_t>& cu_seqlens) {
    const Mask mask = varlen_mask(cu_seqlens, true);
    DistAttnConfig config;
    config.cp_size = 16;  // packs over few ranks are not searched, or by several threads
    config.heads = {64, 8, 128, 128, DType::kBFloat16};
    return fastest_seconds([&] { make_plan(mask, config); });
  };
  const double brief = seconds({0, 300, 500, 768});
  const double usual = seconds(documents(100, 1024));
  EXPECT_LT(5 * brief, usual) << brief << " s and " << usual << " s";
}

TEST(PlanGrowth, ValidationIsAboutLinearInSlices) {
  const auto seconds = [](int64_t count) {
    const Mask mask = varlen_mask(documents(count, 64), false);
    const std::vector<AttnSlice> slices(mask.slices().begin(), mask.slices().end());
    return fastest_seconds([&] { Mask(mask.seqlen_q(), mask.seqlen_k(), slices); });
  };
  const double few = seconds(4000);
  const double many = seconds(static_cast<int64_t>(4000 * kGrowth));
  EXPECT_LT(many, few * kMostAllowed) << few << " s and " << many << " s";
}

Dispatch in_sequence(int cp_size, int64_t seqlen) {
  Dispatch dispatch{cp_size, seqlen / cp_size, {}};
  for (int rank = 0; rank < cp_size; ++rank) dispatch.rank_of_chunk.push_back(rank);
  return dispatch;
}

// It walked all chunks for each rank: a minute for 8,192 of them.
TEST(PlanGrowth, LowerBoundIsAboutLinearInRanks) {
  constexpr int64_t kRows = 1 << 20;
  const Mask mask = sliding_window_mask(kRows, {127, 0});
  const auto seconds = [&](int cp_size) {
    const Dispatch dispatch = in_sequence(cp_size, kRows);
    return fastest_seconds([&] { rows_lower_bound(mask, dispatch, dispatch); });
  };
  const double few = seconds(512);
  const double many = seconds(static_cast<int>(512 * kGrowth));
  EXPECT_LT(many, few * kMostAllowed) << few << " s and " << many << " s";
}

// The search compared each piece of a document with all before it.
TEST(PlanGrowth, CountingRowsIsAboutLinearInPieces) {
  const auto seconds = [&](int cp_size) {
    const Mask mask = sliding_window_mask(int64_t{cp_size} * 8, {8, 0});
    std::vector<RankRun> map;
    for (int rank = 0; rank < cp_size; ++rank) map.push_back({rank, rank + 1, rank});
    Refiner refiner(mask.slices(), true, 8, cp_size, cp_size);
    return fastest_seconds([&] { refiner.score(map, 0); });
  };
  const double few = seconds(2048);
  const double many = seconds(static_cast<int>(2048 * kGrowth));
  EXPECT_LT(many, few * kMostAllowed) << few << " s and " << many << " s";
}

// Every step of every group looked at every slice of the mask, where its own are a few.
TEST(PlanGrowth, RingIsAboutLinearInRanksWhereSlicesAreMany) {
  const Mask mask = varlen_mask(documents(8000, 64), true);
  const auto seconds = [&](int cp_size) {
    DistAttnConfig config;
    config.cp_size = cp_size;
    config.strategy.name = Strategy::kRing;
    return fastest_seconds([&] { make_plan(mask, config); });
  };
  // 7 times as much; all slices for all steps were 25.
  const double few = seconds(8);
  const double many = seconds(static_cast<int>(8 * kGrowth));
  EXPECT_LT(many, few * 16) << few << " s and " << many << " s";
}

// Each asked for tens of gigabytes, or more than a terabyte, and the process was killed.
TEST(PlanGrowth, TablesThatNoMachineHoldsAreRefused) {
  constexpr int kRanks = 16384;
  constexpr int64_t kRows = kRanks;
  const Dispatch dispatch = in_sequence(kRanks, kRows);
  DistAttnConfig config;
  config.cp_size = kRanks;
  EXPECT_THAT([&] { make_plan(full_mask(kRows, kRows), config, dispatch, dispatch); },
              ThrowsMessage<InvalidArgument>(HasSubstr("(got 268435456 pieces, cp_size=16384)")));
  config.strategy.name = Strategy::kRing;
  EXPECT_THAT([&] { make_plan(full_mask(kRows, kRows), config); },
              ThrowsMessage<InvalidArgument>(HasSubstr("ring takes at most 8192 row groups (got 16384 of 16384")));
}

}  // namespace
}  // namespace tangram
