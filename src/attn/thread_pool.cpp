// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/thread_pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/fork.hpp"
#include "core/interrupt.hpp"
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
  void check(int thread_idx);

  const MadeHere made_here;

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

/// The right to run a loop.
class ThreadPool::Team::Turn {
 public:
  explicit Turn(Team& team) : team_(team) {
    std::unique_lock lock(team_.mutex_);
    while (!team_.turn_.wait_for(lock, kInterruptInterval, [&] { return !team_.is_taken_; })) {
      lock.unlock();
      check_interrupt();
      lock.lock();
    }
    team_.is_taken_ = true;
    team_.caller_ = std::this_thread::get_id();
  }
  ~Turn() {
    team_.caller_ = std::thread::id();
    const std::lock_guard lock(team_.mutex_);
    team_.is_taken_ = false;
    team_.turn_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Team& team_;
};

void ThreadPool::parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body) {
  team().parallel_for(num_items, body);
}

void ThreadPool::check(int thread_idx) { team().check(thread_idx); }

void ThreadPool::Team::parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body) {
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

void ThreadPool::Team::stop(std::exception_ptr error) {
  next_item_ = num_items_;
  const std::lock_guard lock(mutex_);
  if (error_ == nullptr) error_ = std::move(error);
  is_stopped_ = true;
}

void ThreadPool::Team::check(int thread_idx) {
  if (thread_idx == 0) interrupts_.check();
  if (is_stopped_.load(std::memory_order_relaxed)) throw InternalError("ThreadPool: the loop has been stopped");
}

}  // namespace tangram
