// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs of plans with a grid of ranks: those of the other strategies than Tangram's own.
#pragma once

#include "plan/program/emit.hpp"

namespace tangram {

/// For each number of heads in a chunk, of all steps between row groups.
std::vector<ProgramMask> grid_masks(const Plan& plan, int rank);
Program grid_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);
Program grid_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept);

}  // namespace tangram
