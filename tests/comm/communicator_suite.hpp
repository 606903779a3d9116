// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What every transport must do, written as the main function of one rank, so that one suite serves all transports.
#pragma once

#include <span>

#include "tangram/communicator.hpp"

namespace tangram::testing {

struct CommunicatorCase {
  const char* name;
  void (*run)(Communicator& communicator);
};

/// Each case is run on every rank of a group and leaves the communicator usable.
std::span<const CommunicatorCase> communicator_cases();

}  // namespace tangram::testing
