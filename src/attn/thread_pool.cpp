// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/thread_pool.hpp"

#include <utility>

#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

int resolve(int num_threads) {
  if (num_threads == 0) num_threads = Env::get().num_threads;
  if (num_threads == 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, num_threads);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  const int num_workers = resolve(num_threads) - 1;
  workers_.reserve(static_cast<size_t>(num_workers));
  for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this, i] { work(i + 1); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

/// The right to run a loop.
class ThreadPool::Turn {
 public:
  explicit Turn(ThreadPool& pool) : pool_(pool) {
    std::unique_lock lock(pool_.mutex_);
    while (!pool_.turn_.wait_for(lock, kInterruptInterval, [&] { return !pool_.is_taken_; })) {
      lock.unlock();
      check_interrupt();
      lock.lock();
    }
    pool_.is_taken_ = true;
    pool_.caller_ = std::this_thread::get_id();
  }
  ~Turn() {
    pool_.caller_ = std::thread::id();
    const std::lock_guard lock(pool_.mutex_);
    pool_.is_taken_ = false;
    pool_.turn_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  ThreadPool& pool_;
};

void ThreadPool::parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body) {
  if (caller_ == std::this_thread::get_id()) {  // called by an interrupt of this very loop
    for (int64_t item = 0; item < num_items; ++item) body(item, 0);
    return;
  }
  const Turn turn(*this);
  interrupts_ = {};
  is_stopped_ = false;
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
  const auto is_done = [this] { return num_running_ == 0; };
  while (!alone && !done_.wait_for(lock, kInterruptInterval, is_done)) {
    if (is_stopped_) continue;
    lock.unlock();
    try {
      check_interrupt();
    } catch (...) {
      stop(std::current_exception());
    }
    lock.lock();
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void ThreadPool::work(int thread_idx) {
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

void ThreadPool::drain(int thread_idx) {
  try {
    while (true) {
      if (thread_idx == 0) interrupts_.check();  // before an item is drawn: others may wait for what has been drawn
      const int64_t item = next_item_++;
      if (item >= num_items_) return;
      (*body_)(item, thread_idx);
    }
  } catch (...) {
    stop(std::current_exception());
  }
}

void ThreadPool::stop(std::exception_ptr error) {
  next_item_ = num_items_;
  const std::lock_guard lock(mutex_);
  if (error_ == nullptr) error_ = std::move(error);
  is_stopped_ = true;
}

void ThreadPool::check(int thread_idx) {
  if (thread_idx == 0) interrupts_.check();
  if (is_stopped_.load(std::memory_order_relaxed)) throw InternalError("ThreadPool: the loop has been stopped");
}

}  // namespace tangram
