// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/fork.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "support/in_child.hpp"

namespace tangram {
namespace {

TEST(Fork, AChildKnowsWhatItInherited) {
  const MadeHere here;
  EXPECT_FALSE(here.is_inherited());
  EXPECT_EQ(here.process(), ::getpid());
  EXPECT_TRUE(test::passes_in_child([&] { return here.is_inherited() && !MadeHere().is_inherited(); }));
  EXPECT_TRUE(test::passes_in_child([&] {
    const MadeHere in_child;
    return test::passes_in_child([&] { return here.is_inherited() && in_child.is_inherited(); });
  }));
  EXPECT_FALSE(here.is_inherited());
}

TEST(Fork, AChildDoesNotWaitForALockOfAThreadThatItHasNot) {
  ForkMutex mutex;
  std::atomic<bool> held = false, goes_on = false;
  std::thread holder([&] {
    const std::lock_guard lock(mutex);
    held = true;
    while (!goes_on) std::this_thread::yield();
  });
  while (!held) std::this_thread::yield();
  EXPECT_TRUE(test::passes_in_child([&] {
    {
      const std::lock_guard lock(mutex);
      if (!mutex.was_abandoned()) return false;
    }
    const std::lock_guard lock(mutex);
    return !mutex.was_abandoned();
  }));
  goes_on = true;
  holder.join();
  const std::lock_guard lock(mutex);
  EXPECT_FALSE(mutex.was_abandoned());
}

TEST(Fork, AForkMutexExcludes) {
  constexpr int kThreads = 4, kRounds = 20000;
  ForkMutex mutex;
  int64_t sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        const std::lock_guard lock(mutex);
        ++sum;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, int64_t{kThreads} * kRounds);
}

TEST(Fork, AChildHasNoConnectionsOfItsParent) {
  const int file = ::open("/dev/null", O_RDONLY);
  ASSERT_GE(file, 0);
  const auto is_open = [&] { return ::fcntl(file, F_GETFD) >= 0; };
  {
    ClosedInChildren closed;
    closed.add(file);
    EXPECT_TRUE(test::passes_in_child([&] { return !is_open(); }));
    EXPECT_TRUE(is_open());
  }
  EXPECT_TRUE(test::passes_in_child(is_open));
  ::close(file);
}

}  // namespace
}  // namespace tangram
