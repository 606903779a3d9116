// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A fixed set of threads that run one loop together; items are drawn from a counter, so that uneven ones balance.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/interrupt.hpp"

namespace tangram {

class ThreadPool {
 public:
  /// `num_threads` includes the caller of parallel_for, so one thread means no worker. 0: one per core, or
  /// TANGRAM_NUM_THREADS.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls `body(item, thread_idx)` once for each item of [0, num_items), dealt in ascending order; returns when all
  /// are done. The first exception is rethrown after the loop has stopped. Callers on several threads take turns.
  ///
  /// The caller asks for interrupts (core/interrupt.hpp) between items and while it waits: then items that have begun
  /// are finished, and no other begins. A loop that the interrupt itself runs is done on its thread alone.
  void parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body);

  /// For items that take long: called now and then by `body`, throws if the loop is to end. Only in loops whose items
  /// do not wait for each other.
  void check(int thread_idx);

 private:
  class Turn;
  void work(int thread_idx);
  void drain(int thread_idx);
  void stop(std::exception_ptr error);

  std::atomic<std::thread::id> caller_{};  // of the loop that runs
  InterruptClock interrupts_;              // of the caller
  std::atomic<bool> is_stopped_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable turn_;
  bool is_taken_ = false;  // one loop at a time
  std::condition_variable start_;
  std::condition_variable done_;
  int64_t generation_ = 0;
  int num_running_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;

  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t num_items_ = 0;
  std::atomic<int64_t> next_item_{0};
  std::vector<std::thread> workers_;
};

}  // namespace tangram
