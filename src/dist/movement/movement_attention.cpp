// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/movement/movement_attention.hpp"

#include "core/require.hpp"

namespace tangram {

MovementAttention::MovementAttention(RankContext& context) : context_(context) {
  const Plan& plan = *context.plan;
  require(plan.cp_size() == context.communicator->size(),
          "DistAttention: plan must be for as many ranks as the communicator has (got {} and {})", plan.cp_size(),
          context.communicator->size());
  require(context.backend->takes_delta(),
          "DistAttention: a plan that moves queries needs a backend that takes delta (got {}, which does not)",
          context.backend->name());
  const MovementPlan& movement = plan.movement;
  const size_t cp_size = static_cast<size_t>(plan.cp_size());
  TANGRAM_ASSERT(movement.forward.size() == cp_size && movement.backward.size() == cp_size);
  head_groups_ = movement.head_groups;
  keeps_ = keeps_moved_rows(plan);
  forward_ = make_movement_work(context, movement.forward, head_groups_);
  backward_ = make_movement_work(context, movement.backward, head_groups_);
}

}  // namespace tangram
