// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/head_masks.hpp"

#include <algorithm>
#include <utility>

#include "core/require.hpp"
#include "plan/movement/built_pass.hpp"
#include "plan/validate.hpp"

namespace tangram {

namespace {

void validate(std::span<const Mask> masks, const char* function) {
  require(!masks.empty(), "{}: masks must not be empty", function);
  for (const Mask& mask : masks) {
    require(mask.seqlen_q() == masks[0].seqlen_q() && mask.seqlen_k() == masks[0].seqlen_k(),
            "{}: masks must be of one size (got {} x {} and {} x {})", function, masks[0].seqlen_q(),
            masks[0].seqlen_k(), mask.seqlen_q(), mask.seqlen_k());
  }
}

// Work of one group to ranks.
enum class Assign { kByQueries, kByKeys, kWholeGroups };

// Whole groups go to ranks where there are as many or more; the ranks that share one take its queries by their owners.
RankWork whole_group(const Mask& mask, const PlanRuns& runs, int group, int head_groups, int cp_size) {
  RankWork work(static_cast<size_t>(cp_size));
  const int sharing = std::max(1, cp_size / head_groups);
  const int first = group * cp_size / head_groups;
  for_each_row_piece(mask, runs.q, [&](size_t run, const AttnSlice& piece) {
    work[static_cast<size_t>(first + runs.q[run].owner % sharing)].push_back(piece);
  });
  return work;
}

RankWork work_of(std::span<const Mask> masks, const PlanRuns& runs, int cp_size, Assign assign) {
  RankWork work(static_cast<size_t>(cp_size));
  const int groups = static_cast<int>(masks.size());
  for (int g = 0; g < groups; ++g) {
    const Mask& mask = masks[static_cast<size_t>(g)];
    const RankWork of_group = assign == Assign::kByQueries ? work_by_queries(mask, runs, cp_size)
                              : assign == Assign::kByKeys  ? work_by_keys(mask, runs, cp_size)
                                                           : whole_group(mask, runs, g, groups, cp_size);
    for (size_t r = 0; r < work.size(); ++r) {
      for (const AttnSlice& slice : of_group[r]) {
        work[r].push_back(shifted(slice, g * mask.seqlen_q(), g * mask.seqlen_k()));
      }
    }
  }
  return work;
}

}  // namespace

Mask flattened_mask(std::span<const Mask> masks) {
  validate(masks, "flattened_mask");
  const int64_t groups = static_cast<int64_t>(masks.size());
  std::vector<AttnSlice> slices;
  for (int64_t g = 0; g < groups; ++g) {
    for (const AttnSlice& slice : masks[static_cast<size_t>(g)].slices()) {
      slices.push_back(shifted(slice, g * masks[0].seqlen_q(), g * masks[0].seqlen_k()));
    }
  }
  return Mask(groups * masks[0].seqlen_q(), groups * masks[0].seqlen_k(), std::move(slices));
}

int64_t num_head_masks(const Plan& plan) {
  const int64_t rows = plan.q_dispatch.seqlen();
  return rows > 0 ? plan.mask.seqlen_q() / rows : 1;
}

Plan make_plan(std::span<const Mask> masks, const DistAttnConfig& config) {
  validate(masks, "make_plan");
  if (masks.size() == 1) return make_plan(masks[0], config);
  const auto largest =
      std::max_element(masks.begin(), masks.end(), [](const Mask& a, const Mask& b) { return a.area() < b.area(); });
  DistAttnConfig of_rows = config;
  of_rows.movement = {};
  of_rows.strategy = {};
  const Plan assigned = make_plan(*largest, of_rows);
  return make_plan(masks, config, assigned.q_dispatch, assigned.k_dispatch);
}

Plan make_plan(std::span<const Mask> masks, const DistAttnConfig& config, const Dispatch& q_dispatch,
               const Dispatch& k_dispatch) {
  constexpr const char* kFunction = "make_plan";
  validate(masks, kFunction);
  validate_config(config, kFunction);
  validate_dispatch(q_dispatch, config.cp_size, masks[0].seqlen_q(), "make_plan: q_dispatch");
  validate_dispatch(k_dispatch, config.cp_size, masks[0].seqlen_k(), "make_plan: k_dispatch");
  const int groups = static_cast<int>(masks.size());
  require(config.heads.num_heads_kv % groups == 0,
          "{}: the number of masks must divide num_heads_kv (got {} and num_heads_kv={})", kFunction, groups,
          config.heads.num_heads_kv);
  require(config.movement.head_groups == 0 || config.movement.head_groups == groups,
          "{}: movement.head_groups must be 0 or the number of masks (got {} and {})", kFunction,
          config.movement.head_groups, groups);
  const bool has_strategy = config.strategy.name == Strategy::kTangram || config.strategy.name == Strategy::kAuto;
  require(has_strategy, "{}: masks of head groups need strategy tangram, or auto, which takes it (got {})", kFunction,
          to_string(config.strategy.name));
  const Movement algorithm = config.movement.algorithm;
  require(algorithm == Movement::kKv || algorithm == Movement::kQo || algorithm == Movement::kAuto,
          "{}: masks of head groups need movement.algorithm kv, qo or auto (got {})", kFunction, to_string(algorithm));
  Plan plan;
  plan.mask = flattened_mask(masks);
  plan.config = config;
  plan.config.strategy = {};  // no other one has masks of head groups
  plan.config.movement.head_groups = groups;
  plan.algorithm = config.dispatch.algorithm;
  plan.q_dispatch = q_dispatch;
  plan.k_dispatch = k_dispatch;

  const PlanRuns runs = runs_of(plan);
  std::vector<Assign> assigns;
  if (algorithm != Movement::kQo) assigns.push_back(Assign::kByQueries);
  if (algorithm != Movement::kKv) assigns.push_back(Assign::kByKeys);
  const bool fits = groups % config.cp_size == 0 || config.cp_size % groups == 0;
  if (algorithm == Movement::kAuto && fits) assigns.push_back(Assign::kWholeGroups);
  std::vector<MovementCandidate> candidates;
  for (const Assign assign : assigns) {
    candidates.push_back(build_both(plan, runs, work_of(masks, runs, config.cp_size, assign), groups));
  }
  adopt(plan, best_of_each_pass(std::move(candidates)));
  return plan;
}

}  // namespace tangram
