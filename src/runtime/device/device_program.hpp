// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans with a grid, and those in which queries move, on a GPU: what a program does to device memory, and what
// DeviceDistAttention's options mean for it.
#pragma once

#include <memory>

#include "runtime/device/program_attention.hpp"
#include "tangram/device_dist_attention.hpp"

namespace tangram::device {

/// Whether a program is run; other plans move K/V alone and have an executor of their own.
bool runs_program(const Plan& plan);

/// Throws InvalidArgument unless such a plan is for as many ranks, and for what the backend can do; NotAvailable for an
/// overlap or launch order that programs do not have.
void check_program(const Plan& plan, const DeviceCommunicator& communicator, const AttnBackend& backend,
                   const DeviceDistOptions& options);

/// Collective. As ProgramAttention's constructor, over the memory of the current device, for what has been checked.
std::unique_ptr<ProgramAttention> make_device_program(RankContext& base, DeviceCommunicator& communicator,
                                                      const DeviceDistOptions& options);

}  // namespace tangram::device
