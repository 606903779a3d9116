// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/unfinished.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace tangram::cli {

namespace {

constexpr int kNumSlots = 8;
constexpr size_t kPathBytes = 4096;

/// Slot of an unfinished file, in static memory, since a signal may come at any time.
struct Slot {
  enum State : int { kFree, kTaken, kWatched };

  std::atomic<int> state = kFree;
  char path[kPathBytes] = {};
};
Slot slots[kNumSlots];

/// Only calls that a signal handler may make.
void remove_path(const char* path) {
  if (::unlink(path) != 0) ::rmdir(path);
}

void end_by(int signal) {
  for (Slot& slot : slots) {
    if (slot.state == Slot::kWatched) remove_path(slot.path);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

Unfinished::Unfinished(const std::string& path) {
  for (int i = 0; i < kNumSlots && path.size() < kPathBytes; ++i) {
    int expected = Slot::kFree;
    if (!slots[i].state.compare_exchange_strong(expected, Slot::kTaken)) continue;
    std::memcpy(slots[i].path, path.c_str(), path.size() + 1);
    slots[i].state = Slot::kWatched;
    slot_ = i;
    return;
  }
}

Unfinished::~Unfinished() {
  if (slot_ < 0) return;
  remove_path(slots[slot_].path);
  keep();
}

void Unfinished::keep() {
  if (slot_ >= 0) slots[slot_].state = Slot::kFree;
  slot_ = -1;
}

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    if (sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;  // nohup, for example
    std::signal(signal, end_by);
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace tangram::cli
