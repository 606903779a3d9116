// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/thread_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "support/in_child.hpp"

namespace tangram {
namespace {

/// A loop whose items end only when each thread of the pool has one.
bool runs_on_all_threads(ThreadPool& pool) {
  std::atomic<int> begun = 0;
  std::vector<int> done(static_cast<size_t>(pool.num_threads()));
  pool.parallel_for(pool.num_threads(), [&](int64_t item, int) {
    ++begun;
    while (begun < pool.num_threads()) std::this_thread::yield();
    ++done[static_cast<size_t>(item)];
  });
  return std::all_of(done.begin(), done.end(), [](int count) { return count == 1; });
}

TEST(ThreadPool, AChildOfAForkHasThreadsOfItsOwn) {
  if (!test::kChildMayStartThreads) GTEST_SKIP() << "TSan ends children that start threads";
  for (const int num_threads : {1, 2, 4}) {
    auto pool = std::make_unique<ThreadPool>(num_threads);
    const auto runs_and_ends = [&] {
      const bool runs = runs_on_all_threads(*pool) && runs_on_all_threads(*pool);
      pool.reset();
      return runs;
    };
    EXPECT_TRUE(test::passes_in_child(runs_and_ends)) << "before the first loop, threads: " << num_threads;
    EXPECT_TRUE(runs_on_all_threads(*pool));
    EXPECT_TRUE(test::passes_in_child(runs_and_ends)) << "threads: " << num_threads;
    EXPECT_TRUE(test::passes_in_child([&] {
      return runs_on_all_threads(*pool) && test::passes_in_child(runs_and_ends);
    })) << "a child of a child, threads: "
        << num_threads;
    EXPECT_TRUE(test::passes_in_child([&] {
      pool.reset();  // without a loop
      return true;
    }));
    EXPECT_TRUE(runs_on_all_threads(*pool));
  }
}

TEST(ThreadPool, AChildOfAForkInTheMiddleOfALoopHasThreadsOfItsOwn) {
  if (!test::kChildMayStartThreads) GTEST_SKIP() << "TSan ends children that start threads";
  auto pool = std::make_unique<ThreadPool>(3);
  std::atomic<int> begun = 0;
  std::atomic<bool> goes_on = false;
  std::thread caller([&] {
    pool->parallel_for(3, [&](int64_t, int) {
      ++begun;
      while (!goes_on) std::this_thread::yield();
    });
  });
  while (begun < 3) std::this_thread::yield();
  EXPECT_TRUE(test::passes_in_child([&] {
    bool all_run = true;  // from several threads of the child, which find the parent's team at once
    std::vector<std::thread> callers;
    std::atomic<int> num_run = 0;
    for (int t = 0; t < 3; ++t) callers.emplace_back([&] { num_run += runs_on_all_threads(*pool) ? 1 : 0; });
    for (std::thread& one : callers) one.join();
    all_run = num_run == 3;
    pool.reset();
    return all_run;
  }));
  goes_on = true;
  caller.join();
  EXPECT_TRUE(runs_on_all_threads(*pool));
}

}  // namespace
}  // namespace tangram
