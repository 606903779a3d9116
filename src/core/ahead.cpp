// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/ahead.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tangram {

struct AsyncTask::Task {
  enum State : int { kWaits, kRuns, kDone };

  /// Claims the task; false if another thread has begun it.
  bool begin() {
    int expected = kWaits;
    return state.compare_exchange_strong(expected, kRuns);
  }
  void run() {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    end();
  }
  void end() {
    work = nullptr;  // what it holds ends here
    state = kDone;
    state.notify_all();
  }
  /// A child of a fork would wait for ever for the thread that had begun it in its parent.
  void wait() {
    if (process != getpid()) return;
    for (int now = state; now != kDone; now = state) state.wait(now);
  }

  std::function<void()> work;
  std::exception_ptr error;
  std::atomic<int> state = kWaits;
  const pid_t process = getpid();
};

/// Never destroyed: they may wait when the process ends.
class AsyncTaskThreads {
 public:
  static AsyncTaskThreads& get() {
    static AsyncTaskThreads* const instance = [] {
      auto* made = new AsyncTaskThreads;
      // Before the libraries that their work calls are gone. A child of a fork has no such threads.
      std::atexit([] { get().stop(); });
      return made;
    }();
    return *instance;
  }

  void add(std::shared_ptr<AsyncTask::Task> task) {
    if (process_ != getpid()) return;  // the consumer runs it inline
    const std::lock_guard lock(mutex_);
    if (stops_) return;
    tasks_.push_back(std::move(task));
    if (num_idle_ < tasks_.size() && threads_.size() < most_) {
      threads_.emplace_back([this] { work(); });
    } else {
      any_.notify_one();
    }
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++num_idle_;
      any_.wait(lock, [&] { return stops_ || !tasks_.empty(); });
      --num_idle_;
      if (stops_) return;
      const std::shared_ptr<AsyncTask::Task> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (task->begin()) task->run();
      lock.lock();
    }
  }
  void stop() {
    if (process_ != getpid()) return;
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    any_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable any_;
  std::deque<std::shared_ptr<AsyncTask::Task>> tasks_;
  bool stops_ = false;
  const size_t most_ = std::clamp(std::thread::hardware_concurrency(), 2u, 16u) - 1;
  size_t num_idle_ = 0;
  std::vector<std::thread> threads_;  // as many as there was work for at once
};

AsyncTask::AsyncTask(std::function<void()> work) : task_(std::make_shared<Task>()) {
  task_->work = std::move(work);
  AsyncTaskThreads::get().add(task_);
}

AsyncTask::~AsyncTask() {
  if (task_->begin()) {
    task_->end();
  } else {
    task_->wait();
  }
}

void AsyncTask::finish() {
  if (task_->begin()) {
    task_->run();
  } else {
    task_->wait();
  }
  if (task_->error != nullptr) std::rethrow_exception(task_->error);
}

}  // namespace tangram
