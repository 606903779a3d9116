// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans of one node are those from before plans knew nodes: dispatches, stages and segments as they were recorded then.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/sample.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

class PlanHash {
 public:
  void add(int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ = (hash_ ^ (static_cast<uint64_t>(value) >> (8 * byte) & 0xff)) * 0x100000001b3;
    }
  }
  void add(const Plan& plan) {
    add(static_cast<int64_t>(plan.algorithm));
    add(plan.q_dispatch.chunk_size);
    for (const OwnedChunks& run : plan.q_dispatch.rank_of_chunk.runs()) {
      add(run.end);
      add(run.rank);
    }
    for (const RankPlan& rank : plan.ranks()) {
      for (const KvSegment& segment : rank.segments) {
        for (const int64_t value : {segment.global.begin, segment.global.end, segment.row, int64_t{segment.owner},
                                    segment.owner_row, int64_t{segment.stage_fwd}, int64_t{segment.stage_bwd}}) {
          add(value);
        }
      }
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

Mask pack_of(int64_t rows, unsigned seed, bool causal) {
  std::mt19937 rng(seed);
  std::vector<int64_t> borders{0};
  while (borders.back() < rows) {
    const int64_t longest = int64_t{64} << rng() % 9;
    borders.push_back(
        std::min(rows, borders.back() + 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(longest))));
  }
  return varlen_mask(borders, causal);
}

struct Recorded {
  const char* mask;
  uint64_t hash;  // of plans for 2, 4, 8, 16 and 64 ranks
};

std::vector<std::pair<std::string, Mask>> masks() {
  constexpr int64_t kRows = 65536;
  const std::vector<int64_t> continuations(12, 4096);
  return {{"causal", causal_mask(kRows, kRows)},
          {"full", full_mask(kRows, kRows)},
          {"window", sliding_window_mask(kRows, {1024, 0})},
          {"pack 1", pack_of(kRows, 1, true)},
          {"pack 2", pack_of(kRows, 2, true)},
          {"pack 3, full", pack_of(kRows, 3, false)},
          {"shared prefix", shared_prefix_mask(16384, continuations)}};
}

TEST(OneNode, PlansAreThoseFromBeforeThereWereNodes) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  const Recorded recorded[] = {
      {"causal", 0x10a746f41f04cfbb},        {"full", 0xa9c28feeacaa6647},   {"window", 0x228f08cfdba2bac1},
      {"pack 1", 0xb8f47f0d2eafacd5},        {"pack 2", 0x85afd03f3d58d62d}, {"pack 3, full", 0x202cfe3177c115bf},
      {"shared prefix", 0x5ec423f89b411764},
  };
  size_t next = 0;
  for (const auto& [name, mask] : masks()) {
    PlanHash hash;
    for (const int cp_size : {2, 4, 8, 16, 64}) {
      DistAttnConfig config;
      config.cp_size = cp_size;
      config.heads = {64, 8, 128, 128, DType::kBFloat16};
      hash.add(make_plan(mask, config));
    }
    ASSERT_LT(next, std::size(recorded));
    EXPECT_EQ(name, recorded[next].mask);
    EXPECT_EQ(hash.value(), recorded[next].hash) << name;
    ++next;
  }
}

}  // namespace
}  // namespace tangram
