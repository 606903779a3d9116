// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs of plans in which K/V rows move to the queries that see them, stage by stage.
#pragma once

#include "plan/program/emit.hpp"

namespace tangram {

/// Of the calls of the forward pass, then of those of the backward pass.
std::vector<ProgramMask> kv_masks(const Plan& plan, int rank, const ProgramTarget& target);
/// With CallShape::keeps the first two regions hold the K and V that came last; on streams all that calls read.
Program kv_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);
Program kv_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept);

}  // namespace tangram
