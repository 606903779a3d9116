// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A fixed set of threads that run one loop together; work tiles are drawn from a counter, so that uneven ones balance.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace tangram {

class ThreadPool {
 public:
  /// `num_threads` includes the caller of parallel_for, so one thread means no worker. 0: one per core, or
  /// TANGRAM_NUM_THREADS.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  /// Calls `body(index, thread_idx)` once for each index of [0, num_items), in ascending order; returns when all calls
  /// are done. The first exception is rethrown after the loop has stopped. Callers on several threads take turns. A
  /// child of a fork, which has none of the threads, starts its own at its first loop.
  ///
  /// The caller asks for interrupts (core/interrupt.hpp) between indices and while it waits: then calls that have begun
  /// are finished, and no other begins. A loop that the interrupt itself runs is done on its thread alone.
  void parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body);

  /// Called at intervals by a `body` whose items take long; throws if the loop is to end. Only in loops whose items do
  /// not wait for each other.
  void check(int thread_idx);

 private:
  class Team;
  Team& team();

  const int num_threads_;
  std::atomic<Team*> team_;  // owned, unless it is the parent's
};

}  // namespace tangram
