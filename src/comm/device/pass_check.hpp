// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whether the ranks' specs of a pass fit together, found out before anything is allocated or sent.
#pragma once

#include "tangram/communicator.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Collective. Throws InvalidArgument on every rank when a spec is not valid by itself or does not fit the others'.
/// `landing_number` is the number of the pass whose landing buffers are shared, or -1.
void check_pass_spec(Communicator& control, const DevicePassSpec& spec, int landing_number);

}  // namespace tangram::comm
