// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Interrupts: how waits and long computations of the host end early because the process was asked to, by a signal for
// example. The caller of the library says what an interrupt is: Python's signal handlers run where this asks for them.
#pragma once

#include <chrono>
#include <exception>
#include <functional>

namespace tangram {

/// Both are called on the thread that waits or computes, with no lock of the library held that the other waits need.
struct InterruptHook {
  /// Throws to end the wait or the computation.
  void (*check)() = nullptr;
  /// Gets what `check` threw in a wait that cannot throw; must see to it that a later check throws it, or report it.
  void (*postpone)(const std::exception_ptr& error) noexcept = nullptr;
};

/// Sets the hook of the process; at first there is none.
void set_interrupt_hook(const InterruptHook& hook);

/// A wait or a loop asks at least this often.
inline constexpr std::chrono::milliseconds kInterruptInterval{100};

/// Asks the hook. If the hook throws, runs the actions of this thread's OnInterrupt, the latest first, then rethrows.
void check_interrupt();
/// check_interrupt() for destructors: keeps the error for the next check_interrupt().
void postpone_interrupt() noexcept;

/// Clock for loops: asks the hook if kInterruptInterval has passed since it last did, or since it was made.
class InterruptClock {
 public:
  void check() {
    if (std::chrono::steady_clock::now() < next_) return;
    check_interrupt();
    next_ = std::chrono::steady_clock::now() + kInterruptInterval;
  }

 private:
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kInterruptInterval;
};

/// While it lives: what to do when an interrupt ends a wait or a computation of this thread, before the stack unwinds.
/// So peers are told first, and destructors need not wait for operations that will never end. `action` must not throw.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::function<void()> action);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  friend void check_interrupt();
  std::function<void()> action_;
  OnInterrupt* outer_;
};

/// Reason that peers get.
inline constexpr const char* kInterruptReason =
    "a signal interrupted a call; its group is closed, so make the process group anew";

}  // namespace tangram
