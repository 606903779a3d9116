// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/thread_pool.hpp"

#include "tangram/env.hpp"

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

void ThreadPool::parallel_for(int64_t num_items, const std::function<void(int64_t, int)>& body) {
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
    for (int64_t item = next_item_++; item < num_items_; item = next_item_++) (*body_)(item, thread_idx);
  } catch (...) {
    next_item_ = num_items_;
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

}  // namespace tangram
