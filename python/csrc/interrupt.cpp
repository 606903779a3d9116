// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Signals are heard while the library waits or computes: Python's handlers run, as between two lines of Python.
#include "core/interrupt.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include "bind.hpp"

namespace tangram::python {

namespace {

/// Handlers run there alone. By the system's number, which also holds in a child that another thread has forked.
bool is_main_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)) == ::getpid(); }

void run_signal_handlers() {
  if (!is_main_thread() || Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

/// Handles an error in a destructor. Ctrl-C is raised at the next check; other exceptions are reported as Python
/// reports those of destructors.
void postpone_signal(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (nb::python_error& raised) {
    const nb::gil_scoped_acquire acquire;
    if (raised.matches(PyExc_KeyboardInterrupt)) {
      PyErr_SetInterrupt();
    } else {
      raised.discard_as_unraisable("a signal handler, while tangram ends a group");
    }
  } catch (...) {  // no other is thrown
  }
}

}  // namespace

void hear_signals() { set_interrupt_hook({run_signal_handlers, postpone_signal}); }

}  // namespace tangram::python
