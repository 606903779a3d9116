// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How the sources check: require() for callers' mistakes, TANGRAM_ASSERT for our own. Private to src/, because
// public headers do not include fmt.
#pragma once

#include <fmt/core.h>

#include "tangram/error.hpp"

namespace tangram {

[[noreturn]] void throw_invalid_argument(fmt::string_view format, fmt::format_args args);
[[noreturn]] void throw_internal_error(const char* condition, const char* file, int line);

/// Throws InvalidArgument with the formatted text unless `condition` holds. The text is formatted only on failure.
template <class... Args>
inline void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    throw_invalid_argument(format, fmt::make_format_args(args...));
  }
}

}  // namespace tangram

/// Throws InternalError unless `condition` holds. Always on: planning is cheap, and a wrong number is worse than a
/// stop.
#define TANGRAM_ASSERT(condition)                                      \
  do {                                                                 \
    if (!(condition)) [[unlikely]] {                                   \
      ::tangram::throw_internal_error(#condition, __FILE__, __LINE__); \
    }                                                                  \
  } while (false)
