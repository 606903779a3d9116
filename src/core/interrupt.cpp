// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/interrupt.hpp"

#include <atomic>
#include <utility>

namespace tangram {

namespace {

std::atomic<void (*)()> check_hook = nullptr;
std::atomic<void (*)(const std::exception_ptr&) noexcept> postpone_hook = nullptr;
thread_local OnInterrupt* latest_action = nullptr;

}  // namespace

void set_interrupt_hook(const InterruptHook& hook) {
  postpone_hook = hook.postpone;
  check_hook = hook.check;
}

void check_interrupt() {
  void (*const check)() = check_hook;
  if (check == nullptr) return;
  try {
    check();
  } catch (...) {
    for (const OnInterrupt* at = latest_action; at != nullptr; at = at->outer_) at->action_();
    throw;
  }
}

void postpone_interrupt() noexcept {
  try {
    check_interrupt();
  } catch (...) {
    if (auto* const postpone = postpone_hook.load()) postpone(std::current_exception());
  }
}

OnInterrupt::OnInterrupt(std::function<void()> action) : action_(std::move(action)), outer_(latest_action) {
  latest_action = this;
}

OnInterrupt::~OnInterrupt() { latest_action = outer_; }

}  // namespace tangram
