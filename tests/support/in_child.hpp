// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Runs a function in a child of a fork, beside whatever threads the test has.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

namespace tangram::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kChildMayStartThreads = false;  // TSan ends a child that does
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kChildMayStartThreads = false;
#else
inline constexpr bool kChildMayStartThreads = true;
#endif
#else
inline constexpr bool kChildMayStartThreads = true;
#endif

/// Whether `passes` returned true in the child. A child that hangs is ended after a minute.
template <class Passes>
bool passes_in_child(Passes passes) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    bool passed = false;
    try {
      passed = passes();
    } catch (const std::exception&) {
    }
    ::_exit(passed ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace tangram::test
