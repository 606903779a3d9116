// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs of plans in which queries travel as well as keys: every rank computes what the plan gives it, for rows of
// its own and of others, and the owner of a row puts its parts together.
#pragma once

#include "plan/program/emit.hpp"

namespace tangram {

/// NOTE [moved queries]: q rows of a stage arrive while the stage before computes, are computed in one call, and their
/// out and lse (dq) go back while the next stage computes. Parts that come back are added up apart from the owner's
/// own, by stage and then in rank order, and joined with it once, at the end: results do not depend on who came first.
/// Backends never see a sink: it enters at the owner, after the last part.

/// Of the calls of the forward pass, then of those of the backward pass.
std::vector<ProgramMask> movement_masks(const Plan& plan, int rank);
/// With CallShape::keeps the first three regions hold the fetched q, and the K and V buffers.
Program movement_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);
Program movement_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept);

}  // namespace tangram
