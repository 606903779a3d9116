// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plays the programs of all ranks without a number of a tensor, and says what is wrong with them.
//
// NOTE [fingerprints]: a cell stands for what a row and head of a tensor hold: an element of the field of integers
// modulo 2^61 - 1. Rows of arguments hold random elements, q(i, h), k(j, g) and so on. Attention is multilinear over
// them. The out of row i is q(i, h) times the sum of k(j, g) v(j, g) over the keys that it sees, plus its sinks. A
// gradient of keys is likewise a sum over queries. All copies, transfers and additions of a program are linear. Partial
// results count as if they were not normalised: out and lse of a call are one element. So combining by lse is adding,
// and parts whose out and lse come from different calls do not agree. As elements, delta
// is out times dout, and a row's share of dsink is lse times delta. Element max_logits is the sum of all that a rank's
// calls see, which is more than the largest. The mask alone gives the expected elements. A
// cell that was computed twice, never, or with the rows of another cell gives another element, except with a
// probability of 2^-61 (Schwartz-Zippel). Besides, every cell knows whether it was written, and which transfers read or
// write it.
#pragma once

#include <span>

#include "plan/program/emit.hpp"

namespace tangram {

/// One program a rank of the forward pass, and of the backward pass after it; `kept`: with what it left.
struct StepPrograms {
  ProgramTarget target;
  std::vector<Program> forward;
  std::vector<Program> backward;
  bool kept = false;
  bool equal_arenas = true;  ///< regions of the arena must have one size on all ranks
};
StepPrograms step_programs(const Plan& plan, const CallShape& call, const ProgramTarget& target, bool kept);

/// Throws InvalidArgument that names rank and operation if: operands are outside of their region or have other shapes
/// than the mask; data is read before it was written or has arrived; data is written that a transfer still reads or
/// will write; casts have no partner, are not sent or not waited for, or no rank can go on; regions of the arena differ
/// between ranks; a result is not written, or is not the sum of the visible cells, each once. O(rows * heads * slices)
/// an attention call.
void verify(const Plan& plan, const CallShape& call, const StepPrograms& programs);

}  // namespace tangram
