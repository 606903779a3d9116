// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a child of fork() must know: it has copies of the parent's objects, but of the parent's threads only the one
// that forked. Locks that other threads held stay locked in the copy, worker threads are missing, and sockets and
// shared memory are still the parent's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <vector>

namespace tangram {

/// How many forks lie between the first process and this one. Costs one load.
int fork_count();

/// Says of an object that holds it whether this process has made it, or has a copy of what its parent made.
class MadeHere {
 public:
  MadeHere();
  bool is_inherited() const { return forks_ != fork_count(); }
  pid_t process() const { return process_; }

 private:
  int forks_;
  pid_t process_;
};

/// Drops `owned`, whose `made_here` is a MadeHere. If it is the parent's, its destructor is skipped: that would join
/// threads and take locks which a child cannot, or notify peers on the parent's behalf.
template <class T>
void leave_to_parent(std::unique_ptr<T>& owned) {
  if (owned != nullptr && owned->made_here.is_inherited()) static_cast<void>(owned.release());
}

/// Connections that children of forks close at once. A peer learns of this process's death by the end of a connection,
/// which does not come while a child holds a copy.
class ClosedInChildren {
 public:
  ClosedInChildren() = default;
  ~ClosedInChildren();
  ClosedInChildren(const ClosedInChildren&) = delete;
  ClosedInChildren& operator=(const ClosedInChildren&) = delete;

  /// Beyond 4,096 of a process children keep them.
  void add(int file);

 private:
  std::vector<int> files_;
};

/// A mutex that a child finds unlocked if another thread of its parent held it during the fork. What it guards may be
/// half changed then: see was_abandoned().
class ForkMutex {
 public:
  ForkMutex() = default;
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() {
    const int mine = fork_count() + 1;
    while (true) {
      int holder = holder_.load(std::memory_order_relaxed);
      if (holder == mine) {
        holder_.wait(holder, std::memory_order_relaxed);
      } else if (holder_.compare_exchange_weak(holder, mine, std::memory_order_acquire)) {
        was_abandoned_ = holder != 0;
        return;
      }
    }
  }
  void unlock() {
    holder_.store(0, std::memory_order_release);
    holder_.notify_one();
  }
  /// Whether the holder before was a thread of the parent. Called by the holder.
  bool was_abandoned() const { return was_abandoned_; }

 private:
  bool was_abandoned_ = false;
  std::atomic<int> holder_{0};  // 0: free; else fork_count() + 1 of the process whose thread holds it
};

}  // namespace tangram
