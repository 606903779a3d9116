// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/fork.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>

namespace tangram {

namespace {

std::atomic<int> num_forks{0};

// Without locks, which a child could find taken. 0: free, else the file and one.
std::array<std::atomic<int>, 4096> closed_in_children{};

void begin_child() {
  ++num_forks;
  for (std::atomic<int>& slot : closed_in_children) {
    if (const int file = slot.exchange(0)) ::close(file - 1);
  }
}

// When the library is loaded: what is set up at first use could be half set up in a child.
[[maybe_unused]] const int is_registered = pthread_atfork(nullptr, nullptr, begin_child);

}  // namespace

int fork_count() { return num_forks.load(std::memory_order_relaxed); }

ClosedInChildren::~ClosedInChildren() {
  for (const int file : files_) {
    for (std::atomic<int>& slot : closed_in_children) {
      int expected = file + 1;
      if (slot.compare_exchange_strong(expected, 0)) break;
    }
  }
}

void ClosedInChildren::add(int file) {
  files_.push_back(file);
  for (std::atomic<int>& slot : closed_in_children) {
    int expected = 0;
    if (slot.compare_exchange_strong(expected, file + 1)) return;
  }
}

MadeHere::MadeHere() : forks_(fork_count()), process_(getpid()) {}

}  // namespace tangram
