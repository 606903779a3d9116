// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

DistAttnConfig ranks_only(int cp_size) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  return config;
}

TEST(PlanCache, ReturnsTheSamePlanForEqualKeys) {
  PlanCache cache(4);
  EXPECT_EQ(cache.most_recent(), nullptr);
  const auto first = cache.get(causal_mask(64, 64), ranks_only(2));
  EXPECT_EQ(*first, make_plan(causal_mask(64, 64), ranks_only(2)));
  EXPECT_EQ(cache.get(causal_mask(64, 64), ranks_only(2)), first);
  const auto other = cache.get(causal_mask(64, 64), ranks_only(4));
  EXPECT_NE(other, first);
  EXPECT_NE(cache.get(full_mask(64, 64), ranks_only(2)), first);
  EXPECT_EQ(cache.counters().hits, 1);
  EXPECT_EQ(cache.counters().misses, 3);
  EXPECT_EQ(cache.size(), 3u);
  EXPECT_EQ(cache.get(causal_mask(64, 64), ranks_only(4)), other);
  EXPECT_EQ(cache.most_recent(), other);
}

TEST(PlanCache, KeepsNoMoreBytesThanItMay) {
  PlanCache cache(100);
  const auto a = cache.get(causal_mask(1024, 1024), ranks_only(4));
  EXPECT_EQ(cache.bytes(), memory_bytes(*a));
  cache.get(causal_mask(2048, 2048), ranks_only(4));
  const auto last = cache.get(causal_mask(4096, 4096), ranks_only(4));
  EXPECT_EQ(cache.size(), 3u);
  cache.set_max_bytes(cache.bytes() - 1);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_LE(cache.bytes(), cache.max_bytes());
  EXPECT_EQ(cache.get(causal_mask(4096, 4096), ranks_only(4)), last);
  cache.set_max_bytes(0);  // what was used last stays
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_EQ(cache.bytes(), memory_bytes(*last));
  cache.clear();
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_THROW(PlanCache(4, -1), InvalidArgument);
  EXPECT_THROW(cache.set_max_bytes(-1), InvalidArgument);
}

// The larger the mask and the more ranks, the more bytes; at least those of the lists that can be counted here.
TEST(PlanMemory, CountsTheLists) {
  const Plan small = make_plan(causal_mask(1024, 1024), ranks_only(2));
  const Plan large = make_plan(causal_mask(65536, 65536), ranks_only(8));
  EXPECT_GT(memory_bytes(large), memory_bytes(small));
  int64_t slices = 0;
  for (const RankPlan& rank : large.ranks()) slices += std::ssize(rank.slices);
  EXPECT_GE(memory_bytes(large), slices * static_cast<int64_t>(sizeof(AttnSlice)) +
                                     2 * large.q_dispatch.num_chunks() * static_cast<int64_t>(sizeof(int)));
  EXPECT_GT(executor_bytes(large), executor_bytes(small));
}

TEST(PlanCache, DropsTheLeastRecentlyUsed) {
  PlanCache cache(2);
  const auto a = cache.get(causal_mask(16, 16), ranks_only(2));
  cache.get(causal_mask(32, 32), ranks_only(2));
  cache.get(causal_mask(16, 16), ranks_only(2));  // now 32 is the oldest
  cache.get(causal_mask(64, 64), ranks_only(2));
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.get(causal_mask(16, 16), ranks_only(2)), a);
  EXPECT_EQ(cache.counters().misses, 3);
  cache.get(causal_mask(32, 32), ranks_only(2));
  EXPECT_EQ(cache.counters().misses, 4);
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.most_recent(), nullptr);
  EXPECT_EQ(a->cp_size(), 2);  // plans outlive the cache's interest in them
}

TEST(PlanCache, ServesManyThreads) {
  PlanCache cache(3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int n = 0; n < 50; ++n) {
        const int64_t seqlen = 16 * (1 + (n + t) % 5);
        const auto plan = cache.get(causal_mask(seqlen, seqlen), ranks_only(2));
        ASSERT_EQ(plan->mask.seqlen_q(), seqlen);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const PlanCache::Counters counters = cache.counters();
  EXPECT_EQ(counters.hits + counters.misses, 200);
  EXPECT_LE(cache.size(), 3u);
}

TEST(PlanCache, ABadMaskLeavesTheCacheAsItWas) {
  PlanCache cache(2);
  EXPECT_THROW(cache.get(causal_mask(15, 15), ranks_only(2)), InvalidArgument);
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_THROW(PlanCache(0), InvalidArgument);
}

}  // namespace
}  // namespace tangram
