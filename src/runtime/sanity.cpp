// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/sanity.hpp"

#include "plan/program/verify.hpp"
#include "tangram/env.hpp"

namespace tangram {

void ProgramCheck::before_call(const Plan& plan, const CallShape& call, const ProgramTarget& target, bool kept) {
  constexpr int64_t kMostCells = 1 << 20;
  constexpr int kMostRanks = 4;
  if (!Env::get().sanity_check || plan.cp_size() == 1 || plan.cp_size() > kMostRanks ||
      plan.mask.seqlen_q() * plan.config.heads.num_heads_q > kMostCells) {
    return;
  }
  if (verified_.emplace(kept, call).second) verify(plan, call, step_programs(plan, call, target, kept));
}

}  // namespace tangram
