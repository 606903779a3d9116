// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs on a GPU: what they do to device memory, and what DeviceDistAttention's options mean for them.
#pragma once

#include <memory>

#include "runtime/device/program_attention.hpp"
#include "tangram/device_dist_attention.hpp"

namespace tangram::device {

/// Throws InvalidArgument unless the plan is for as many ranks, and for what the backend can do; NotAvailable for an
/// overlap or launch order that its programs do not have.
void check_program(const Plan& plan, const DeviceCommunicator& communicator, const AttnBackend& backend,
                   const DeviceDistOptions& options);

/// Collective. As ProgramAttention's constructor, over the memory of the current device, for what has been checked.
/// Throws NotAvailable, alike on all ranks, for a kSingleLaunch that cannot be.
std::unique_ptr<ProgramAttention> make_device_program(RankContext& base, DeviceCommunicator& communicator,
                                                      const DeviceDistOptions& options);

}  // namespace tangram::device
