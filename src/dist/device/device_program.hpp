// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans with a grid on a GPU: what a program does to device memory, and what DeviceDistAttention's options mean for it.
#pragma once

#include <memory>

#include "dist/program/program_attention.hpp"
#include "tangram/device_dist_attention.hpp"

namespace tangram::device {

/// Collective. As ProgramAttention's constructor, over the memory of the current device. Throws NotAvailable for an
/// overlap or launch order that programs do not have.
std::unique_ptr<ProgramAttention> make_device_program(RankContext& base, DeviceCommunicator& communicator,
                                                      const DeviceDistOptions& options);

/// Throws InvalidArgument unless a plan with a grid is for `size` ranks.
void check_grid_plan(const Plan& plan, int size);

}  // namespace tangram::device
