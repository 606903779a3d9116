// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// AsyncTask: a background task. The consumer runs it inline if it has not started.
#pragma once

#include <functional>
#include <memory>

namespace tangram {

/// Owns a background task. The consumer runs it inline if a thread of the library has not started it, so that nothing
/// ever depends on other threads. For work of a few milliseconds at most. Used by one thread at a time.
class AsyncTask {
 public:
  /// Hands `work` to the threads, of which there are fewer than processors, and none before there is work.
  explicit AsyncTask(std::function<void()> work);
  /// Work that has not begun is forgotten; what has begun, waited for.
  ~AsyncTask();
  AsyncTask(const AsyncTask&) = delete;
  AsyncTask& operator=(const AsyncTask&) = delete;

  /// Returns when the work is done, by this thread unless the other has begun it. Throws what it threw, and
  /// NotAvailable in a child of a fork if a thread of its parent had begun it.
  void finish();

 private:
  friend class AsyncTaskThreads;
  struct Task;
  std::shared_ptr<Task> task_;
};

}  // namespace tangram
