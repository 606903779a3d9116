// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What an error says that a call must end in.
#pragma once

#include <string>

#include "tangram/error.hpp"

namespace tangram::support {

/// Errors of another kind pass.
template <class Expected = InvalidArgument, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace tangram::support
