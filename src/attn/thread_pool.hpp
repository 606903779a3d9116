// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A fixed set of threads that run one loop together; work tiles are drawn from a counter, so that uneven ones balance.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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

  /// Calls `body(work_tile, thread_idx)` once for each work tile of [0, num_items), taken in ascending order; returns
  /// when all are done. The first exception is rethrown after the loop has stopped. Callers on several threads take
  /// turns.
  void parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body);

 private:
  void work(int thread_idx);
  void drain(int thread_idx);

  std::mutex call_mutex_;  // one loop at a time
  std::mutex mutex_;       // guards what follows
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
