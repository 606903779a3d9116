// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/ahead.hpp"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace tangram {

struct Ahead::Task {
  enum State : int { kWaits, kRuns, kDone };

  /// Whether nobody else has begun it.
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
  void wait() {
    for (int now = state; now != kDone; now = state) state.wait(now);
  }

  std::function<void()> work;
  std::exception_ptr error;
  std::atomic<int> state = kWaits;
};

/// Never destroyed: it may wait when the process ends.
class AheadThread {
 public:
  static AheadThread& get() {
    static AheadThread* const instance = [] {
      auto* made = new AheadThread;
      // Before the libraries that its work calls are gone. A child of a fork has no such thread.
      std::atexit([] { get().stop(); });
      return made;
    }();
    return *instance;
  }

  void add(std::shared_ptr<Ahead::Task> task) {
    if (process_ != getpid()) return;  // whoever needs it does it
    const std::lock_guard lock(mutex_);
    if (stops_) return;
    tasks_.push_back(std::move(task));
    any_.notify_one();
  }

 private:
  AheadThread() : thread_([this] { work(); }) {}

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      any_.wait(lock, [&] { return stops_ || !tasks_.empty(); });
      if (stops_) return;
      const std::shared_ptr<Ahead::Task> task = std::move(tasks_.front());
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
    thread_.join();
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable any_;
  std::deque<std::shared_ptr<Ahead::Task>> tasks_;
  bool stops_ = false;
  std::thread thread_;  // the last one: it uses the others
};

Ahead::Ahead(std::function<void()> work) : task_(std::make_shared<Task>()) {
  task_->work = std::move(work);
  AheadThread::get().add(task_);
}

Ahead::~Ahead() {
  if (task_->begin()) {
    task_->end();
  } else {
    task_->wait();
  }
}

void Ahead::finish() {
  if (task_->begin()) {
    task_->run();
  } else {
    task_->wait();
  }
  if (task_->error != nullptr) std::rethrow_exception(task_->error);
}

}  // namespace tangram
