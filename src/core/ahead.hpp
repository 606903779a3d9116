// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Work that somebody will need soon, begun before that.
#pragma once

#include <functional>
#include <memory>

namespace tangram {

/// Owns a piece of work that a thread of the library does unless the one who needs it comes first: then it is done
/// there and then, so that nothing ever depends on other threads. For work of a few milliseconds at most. Used by one
/// thread at a time.
class Ahead {
 public:
  /// Hands `work` to the threads, of which there are fewer than processors, and none before there is work.
  explicit Ahead(std::function<void()> work);
  /// Work that has not begun is forgotten; what has begun, waited for.
  ~Ahead();
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  /// Returns when the work is done, by this thread unless the other has begun it. Throws what it threw, and
  /// NotAvailable in a child of a fork if a thread of its parent had begun it.
  void finish();

 private:
  friend class AheadThreads;
  struct Task;
  std::shared_ptr<Task> task_;
};

}  // namespace tangram
