// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/async_task.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tangram/error.hpp"

namespace tangram {
namespace {

TEST(AsyncTask, WorkIsDoneOnceByAnyThread) {
  for (int round = 0; round < 2000; ++round) {
    int done = 0;  // by one thread, whose writes the other sees
    AsyncTask ahead([&] { ++done; });
    if (round % 3 == 0) std::this_thread::yield();
    ahead.finish();
    ASSERT_EQ(done, 1);
    ahead.finish();
    ASSERT_EQ(done, 1);
  }
}

TEST(AsyncTask, AWorkerThreadBeginsItUnasked) {
  std::atomic<bool> done = false;
  const AsyncTask ahead([&] { done = true; });
  while (!done) std::this_thread::yield();
}

TEST(AsyncTask, WhatIsGivenUpIsForgottenOrWaitedFor) {
  std::atomic<int> running = 0;
  auto held = std::make_shared<int>(0);
  for (int round = 0; round < 2000; ++round) {
    {
      const AsyncTask ahead([&running, held] {
        ++running;
        std::this_thread::yield();
        --running;
      });
      if (round % 2 == 0) std::this_thread::yield();
    }
    ASSERT_EQ(running, 0);
  }
  // The thread may still hold tasks that were forgotten, but not what their work held.
  EXPECT_EQ(held.use_count(), 1);
}

TEST(AsyncTask, TheOneWhoNeedsItGetsTheError) {
  for (int round = 0; round < 200; ++round) {
    AsyncTask ahead([] { throw std::runtime_error("no"); });
    EXPECT_THROW(ahead.finish(), std::runtime_error);
    EXPECT_THROW(ahead.finish(), std::runtime_error);
  }
}

// Loaders of training data are forked at any time.
TEST(AsyncTask, AChildOfAForkWaitsForNoThread) {
  std::atomic<bool> begun = false, goes_on = false;
  auto ahead = std::make_unique<AsyncTask>([&] {
    begun = true;
    while (!goes_on) std::this_thread::yield();
  });
  while (!begun) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      ahead->finish();  // the child has no result, and did as if it had one
    } catch (const NotAvailable&) {
      refused = true;
    }
    if (!refused) _exit(2);
    ahead.reset();
    int done = 0;
    AsyncTask([&] { ++done; }).finish();
    _exit(done == 1 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  goes_on = true;
  ahead->finish();
}

TEST(AsyncTask, ManyAtOnce) {
  std::vector<int> done(300);
  std::vector<std::unique_ptr<AsyncTask>> all;
  for (int& one : done) all.push_back(std::make_unique<AsyncTask>([&one] { ++one; }));
  for (auto it = all.rbegin(); it != all.rend(); ++it) (*it)->finish();
  EXPECT_EQ(done, std::vector<int>(300, 1));
}

}  // namespace
}  // namespace tangram
