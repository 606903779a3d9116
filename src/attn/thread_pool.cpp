// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/thread_pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/fork.hpp"
#include "tangram/env.hpp"

namespace tangram {

namespace {

int resolve(int num_threads) {
  if (num_threads == 0) num_threads = Env::get().num_threads;
  if (num_threads == 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, num_threads);
}

}  // namespace

/// The threads of one process, and all that they share.
class ThreadPool::Team {
 public:
  explicit Team(int num_workers) {
    workers_.reserve(static_cast<size_t>(num_workers));
    for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this, i] { work(i + 1); });
  }
  ~Team() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body);

  const MadeHere made_here;

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

ThreadPool::ThreadPool(int num_threads) : num_threads_(resolve(num_threads)), team_(new Team(num_threads_ - 1)) {}

ThreadPool::~ThreadPool() {
  std::unique_ptr<Team> team(team_.load());
  leave_to_parent(team);
}

ThreadPool::Team& ThreadPool::team() {
  Team* known = team_.load(std::memory_order_acquire);
  if (!known->made_here.is_inherited()) return *known;
  auto made = std::make_unique<Team>(num_threads_ - 1);
  // The parent's is left as it is: its locks may be taken, and its condition variables count threads as waiting.
  if (team_.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *known;  // of another thread of this process
}

void ThreadPool::parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body) {
  team().parallel_for(num_items, body);
}

void ThreadPool::Team::parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body) {
  const std::lock_guard call_lock(call_mutex_);
  next_item_ = 0;
  body_ = &body;
  num_items_ = num_items;
  error_ = nullptr;
  const bool alone = workers_.empty() || num_items <= 1;
  if (!alone) {
    {
      const std::lock_guard lock(mutex_);
      num_running_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    start_.notify_all();
  }
  drain(0);
  std::unique_lock lock(mutex_);
  if (!alone) done_.wait(lock, [this] { return num_running_ == 0; });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void ThreadPool::Team::work(int thread_idx) {
  int64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    drain(thread_idx);
    const std::lock_guard lock(mutex_);
    if (--num_running_ == 0) done_.notify_one();
  }
}

void ThreadPool::Team::drain(int thread_idx) {
  try {
    for (int64_t item = next_item_++; item < num_items_; item = next_item_++) (*body_)(item, thread_idx);
  } catch (...) {
    next_item_ = num_items_;
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

}  // namespace tangram
