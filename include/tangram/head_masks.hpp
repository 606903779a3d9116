// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One plan for heads that see different cells: a mask for each group of heads, as dynamic sparse attention chooses
// them.
#pragma once

#include <span>

#include "tangram/plan.hpp"

namespace tangram {

/// The masks of head groups as one over flattened rows (MovementPlan): the cells of group g shifted by g times the
/// sequences. Throws InvalidArgument for no masks or masks of different sequences.
Mask flattened_mask(std::span<const Mask> masks);

/// Groups of heads that have masks of their own: 1 unless the plan was made of several masks.
int64_t num_head_masks(const Plan& plan);

/// Plans a step over rows that are sharded already, in which group g of the heads, of `masks.size()` equal ones, sees
/// what `masks[g]` shows. `DistAttention` executes the plan as any other in which queries may move; `Plan::mask` is
/// `flattened_mask(masks)`, and so are the areas of `Plan::rank_totals` over all groups. `config.movement.algorithm`
/// says what moves: kKv, kQo, or kAuto, the best for each pass by the cost model of these and of whole head groups.
/// Throws InvalidArgument for another algorithm or strategy, numbers of groups that do not divide num_heads_kv, and
/// whatever make_plan refuses. `plan_to_json` takes such a plan, `plan_from_json` does not.
Plan make_plan(std::span<const Mask> masks, const DistAttnConfig& config, const Dispatch& q_dispatch,
               const Dispatch& k_dispatch);

/// Shards rows as for the mask with the largest area (the first such mask). For one mask this is make_plan(mask,
/// config).
Plan make_plan(std::span<const Mask> masks, const DistAttnConfig& config);

}  // namespace tangram
