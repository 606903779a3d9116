// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The programs of each kind of plan, of which forward_program and backward_program take the right one.
#pragma once

#include "plan/program/emit.hpp"

namespace tangram {

// Plans in which K/V rows move to the queries that see them, stage by stage. Masks are those of the calls of the
// forward pass, then those of the backward pass. With CallShape::keeps the first two regions hold the K and V that came
// last; on streams all that calls read.
std::vector<ProgramMask> kv_masks(const Plan& plan, int rank, const ProgramTarget& target);
Program kv_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);
Program kv_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept);

// Plans with a grid of ranks: those of the other strategies than Tangram's own. Masks are, for each number of heads in
// a chunk, those of all steps between row groups.
std::vector<ProgramMask> grid_masks(const Plan& plan, int rank);
Program grid_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);
Program grid_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept);

// Plans with QO communication: every rank computes what the plan assigns to it, for rows of its own and of others. The
// owner of a row combines its parts. Masks as of K/V plans. With CallShape::keeps the first three regions hold the
// fetched q, and the K and V buffers.
//
// NOTE [moved queries]: q rows of a stage arrive while the stage before computes, and are computed in one call. Their
// out and lse (dq) go back while the next stage computes. Returned parts are added up apart from the owner's own, by
// stage and then in rank order, and joined with it once, at the end. So results do not depend on the order of arrival.
// Backends never see a sink: it enters at the owner, after the last part.
std::vector<ProgramMask> movement_masks(const Plan& plan, int rank);
Program movement_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);
Program movement_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept);

}  // namespace tangram
