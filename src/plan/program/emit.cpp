// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/emit.hpp"

#include "core/require.hpp"
#include "plan/program/emitters.hpp"

namespace tangram {

namespace {

void require_rank(const char* function, const Plan& plan, int rank) {
  require(0 <= rank && rank < plan.cp_size(), "{}: rank must lie in [0, {}) (got {})", function, plan.cp_size(), rank);
}

}  // namespace

bool can_keep(const Plan& plan) {
  if (plan.movement() != nullptr) return keeps_moved_rows(plan);
  return moves_kv_alone(plan) ? plan.ranks().front().backward.back().kept : plan.ulysses_degree() > 1;
}

AttnShape rank_shape(const Plan& plan, int rank) {
  const HeadConfig& h = plan.config.heads;
  const int64_t kv_rows = moves_kv_alone(plan) ? plan.ranks()[static_cast<size_t>(rank)].kv_rows : 0;
  return {plan.q_dispatch.rows_per_rank(), kv_rows, h.num_heads_q, h.num_heads_kv, h.head_dim, h.head_dim_v, h.dtype};
}

std::vector<ProgramMask> program_masks(const Plan& plan, int rank, const ProgramTarget& target) {
  require_rank("program_masks", plan, rank);
  if (plan.movement() != nullptr) return movement_masks(plan, rank);
  return plan.grid() == nullptr ? kv_masks(plan, rank, target) : grid_masks(plan, rank);
}

Program forward_program(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target) {
  require_rank("forward_program", plan, rank);
  if (plan.movement() != nullptr) return movement_forward(plan, rank, call, target);
  return plan.grid() == nullptr ? kv_forward(plan, rank, call, target) : grid_forward(plan, rank, call, target);
}

Program backward_program(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept) {
  require_rank("backward_program", plan, rank);
  if (plan.movement() != nullptr) return movement_backward(plan, rank, call, target, kept);
  return plan.grid() == nullptr ? kv_backward(plan, rank, call, target, kept)
                                : grid_backward(plan, rank, call, target, kept);
}

}  // namespace tangram
