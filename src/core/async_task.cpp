// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/async_task.hpp"

#include <fmt/format.h>
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

#include "core/fork.hpp"
#include "tangram/error.hpp"

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
  /// A child of a fork would wait for ever for the thread that had begun it in its parent. Returns whether it is done.
  bool wait() {
    for (int now = state; now != kDone; now = state) {
      if (made_here.is_inherited()) return false;
      state.wait(now);
    }
    return true;
  }

  std::function<void()> work;
  std::exception_ptr error;
  std::atomic<int> state = kWaits;
  const MadeHere made_here;
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
    if (made_here_.is_inherited()) return;  // the caller of finish() does it
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
    if (made_here_.is_inherited()) return;
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    any_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const MadeHere made_here_;
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
  } else if (!task_->wait()) {
    throw NotAvailable(
        fmt::format("AsyncTask: what a thread of the parent had begun when this child was forked must be made anew "
                    "(got process={})",
                    ::getpid()));
  }
  if (task_->error != nullptr) std::rethrow_exception(task_->error);
}

}  // namespace tangram
