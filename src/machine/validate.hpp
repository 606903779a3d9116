// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whether the constants of a machine can be computed with.
#pragma once

#include <string_view>

#include "tangram/machine.hpp"

namespace tangram {

/// Throws InvalidArgument in the name of `function` for rates and counts that are not positive, negative times, and
/// more workers for transfers than there are.
void validate_machine(const MachineModel& machine, std::string_view function);

}  // namespace tangram
