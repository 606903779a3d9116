// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What fuzz targets share.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "tangram/error.hpp"

/// Ends the process, so that the fuzzer keeps the input, unless the condition holds.
#define FUZZ_CHECK(condition)                                                             \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

namespace tangram::fuzz {

/// Calls `function`, which may refuse its input by InvalidArgument and by nothing else.
template <class Function>
void accepts_or_refuses(const Function& function) {
  try {
    function();
  } catch (const InvalidArgument&) {
  }
}

}  // namespace tangram::fuzz
