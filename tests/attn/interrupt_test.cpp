// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Loops of the thread pool that an interrupt ends, or in which an interrupt runs a loop of its own.
#include "core/interrupt.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "attn/thread_pool.hpp"

namespace tangram {
namespace {

struct Signal {};

std::thread::id main_thread;
std::function<void()> on_check;

class PoolInterruptTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    main_thread = std::this_thread::get_id();
    set_interrupt_hook({[] {
                          if (std::this_thread::get_id() == main_thread) on_check();
                        },
                        nullptr});
  }
  void TearDown() override { set_interrupt_hook({}); }

  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
};

TEST_P(PoolInterruptTest, LoopOfShortItemsEndsAndThePoolIsUsable) {
  ThreadPool pool(GetParam());
  on_check = [] { throw Signal(); };
  std::atomic<int64_t> num_begun = 0, num_ended = 0;
  EXPECT_THROW(pool.parallel_for(1'000'000,
                                 [&](int64_t, int) {
                                   ++num_begun;
                                   pause();
                                   ++num_ended;
                                 }),
               Signal);
  EXPECT_LT(num_begun, 1'000'000);
  EXPECT_EQ(num_begun, num_ended);
  std::atomic<int64_t> num_items = 0;
  pool.parallel_for(100, [&](int64_t, int) { ++num_items; });
  EXPECT_EQ(num_items, 100);
}

TEST_P(PoolInterruptTest, LongItemsThatAskEndOnAllThreads) {
  ThreadPool pool(GetParam());
  on_check = [] { throw Signal(); };
  const auto for_ever = [&](int64_t, int thread_idx) {
    while (true) {
      pool.check(thread_idx);
      pause();
    }
  };
  EXPECT_THROW(pool.parallel_for(4, for_ever), Signal);
}

TEST_P(PoolInterruptTest, CallerThatHasDoneItsItemsHearsIt) {
  ThreadPool pool(GetParam());
  std::atomic<bool> is_heard = false;
  on_check = [&] { is_heard = true; };
  pool.parallel_for(2, [&](int64_t, int thread_idx) {
    while (thread_idx != 0 && !is_heard) pause();
    if (thread_idx == 0) pause();
  });
}

TEST_P(PoolInterruptTest, AnInterruptMayRunALoopOnThePoolThatWaitsForIt) {
  ThreadPool pool(GetParam());
  int64_t num_inner = 0;
  std::atomic<bool> is_heard = false;
  on_check = [&] {
    pool.parallel_for(10, [&](int64_t, int) { ++num_inner; });
    is_heard = true;
  };
  std::atomic<int64_t> num_outer = 0;
  pool.parallel_for(1000, [&](int64_t, int) {
    ++num_outer;
    if (!is_heard) pause();
  });
  EXPECT_EQ(num_outer, 1000);
  EXPECT_TRUE(is_heard);
  EXPECT_EQ(num_inner % 10, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, PoolInterruptTest, ::testing::Values(1, 3));

}  // namespace
}  // namespace tangram
