// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/require.hpp"

#include <fmt/format.h>

namespace tangram {

void throw_invalid_argument(fmt::string_view format, fmt::format_args args) {
  throw InvalidArgument(fmt::vformat(format, args));
}

void throw_internal_error(const char* condition, const char* file, int line) {
  throw InternalError(fmt::format("internal error: {} does not hold at {}:{}", condition, file, line));
}

}  // namespace tangram
