// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// make_plan, and what can be asked of a finished plan.
#include "tangram/plan.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "plan/clock/kv_time.hpp"
#include "plan/dispatch.hpp"
#include "plan/grid/choose_strategy.hpp"
#include "plan/grid/documents.hpp"
#include "plan/grid/grid.hpp"
#include "plan/movement/movement.hpp"
#include "plan/nodes/node_stages.hpp"
#include "plan/rank_plan.hpp"
#include "plan/runs.hpp"
#include "plan/stages.hpp"
#include "plan/validate.hpp"
#include "tangram/head_masks.hpp"

namespace tangram {

namespace {

// The plan of given dispatches; everything else follows from them.
Plan finish_plan(const Mask& mask, const DistAttnConfig& config, ChosenDispatch q, Dispatch k_dispatch) {
  Plan plan;
  plan.mask = mask;
  plan.config = config;
  plan.algorithm = q.algorithm;
  plan.q_dispatch = std::move(q.dispatch);
  plan.k_dispatch = std::move(k_dispatch);
  auto& ranks = plan.tables.emplace<std::vector<RankPlan>>(make_rank_plans(mask, plan.q_dispatch, plan.k_dispatch));
  const Crossing crossing = crossing_of(config, ranks, owned_runs(plan.k_dispatch));
  const StageCounts counts = choose_stage_counts(config, ranks, crossing);
  assign_stages(ranks, node_shape(config), crossing.rows, counts, config.overlap.keep_remote_kv);
  build_stages(ranks, counts, config.overlap.keep_remote_kv);
  plan.predicted = predict(config, ranks, crossing);
  if (config.movement.algorithm != Movement::kKv) {
    build_movement(plan, plan.predicted.forward_s + plan.predicted.backward_s);
  }
  return plan;
}

Plan finish_grid_plan(const Mask& mask, const DistAttnConfig& config, const GridShape& shape, Dispatch q_dispatch,
                      Dispatch k_dispatch) {
  Plan plan;
  plan.mask = mask;
  plan.config = config;
  plan.algorithm = config.dispatch.algorithm;
  plan.q_dispatch = std::move(q_dispatch);
  plan.k_dispatch = std::move(k_dispatch);
  build_grid(plan, shape, "make_plan");
  return plan;
}

// The plan of the strategy that the configuration names.
Plan plan_for_strategy(const Mask& mask, const DistAttnConfig& config) {
  if (config.strategy.name != Strategy::kTangram) {
    const GridShape shape = grid_shape(config, "make_plan");
    if (config.strategy.name == Strategy::kHybridCp) {
      auto [q, k] = assign_documents(mask, config);
      return finish_grid_plan(mask, config, shape, std::move(q), std::move(k));
    }
    Dispatch q = grid_dispatch(config, shape, mask.seqlen_q(), "make_plan");
    Dispatch k = grid_dispatch(config, shape, mask.seqlen_k(), "make_plan");
    Plan plan = finish_grid_plan(mask, config, shape, std::move(q), std::move(k));
    plan.algorithm =
        plan.q_dispatch.num_chunks() > config.cp_size ? DispatchAlgorithm::kZigzag : DispatchAlgorithm::kSequential;
    return plan;
  }
  ChosenDispatch q = dispatch_queries(mask, config);
  Dispatch k = mask.is_self_attention() ? q.dispatch : dispatch_keys(mask, q.dispatch, config);
  return finish_plan(mask, config, std::move(q), std::move(k));
}

Plan plan_for_strategy(const Mask& mask, const DistAttnConfig& config, const Dispatch& q_dispatch,
                       const Dispatch& k_dispatch) {
  if (config.strategy.name != Strategy::kTangram) {
    return finish_grid_plan(mask, config, grid_shape(config, "make_plan"), q_dispatch, k_dispatch);
  }
  return finish_plan(mask, config, {config.dispatch.algorithm, q_dispatch}, k_dispatch);
}

// `plan_with` makes a plan for a strategy. Tangram's own is made anyway: what it takes follows from its stages.
template <class PlanWith>
Plan choose_plan(const DistAttnConfig& config, std::vector<StrategyCandidate> candidates, PlanWith plan_with) {
  DistAttnConfig chosen = config;
  chosen.strategy = {};
  Plan plan = plan_with(chosen);
  candidates.insert(candidates.begin(), {chosen.strategy, "", plan.predicted});
  sort_candidates(candidates);
  if (candidates[0].strategy.name != Strategy::kTangram) {
    chosen.strategy = candidates[0].strategy;
    chosen.movement = {};  // Tangram's own
    plan = plan_with(chosen);
  }
  plan.candidates = std::move(candidates);
  return plan;
}

}  // namespace

std::vector<Range> Dispatch::rows_of_rank(int rank) const {
  require(0 <= rank && rank < cp_size, "Dispatch::rows_of_rank: rank must lie in [0, {}) (got {})", cp_size, rank);
  std::vector<Range> rows;
  int64_t begin = 0;
  for (const OwnedChunks& run : rank_of_chunk.runs()) {
    if (run.rank == rank) rows.push_back({begin * chunk_size, run.end * chunk_size});
    begin = run.end;
  }
  return rows;
}

int64_t compute_pad_size(int64_t total_seqlen, int cp_size, int64_t chunk_size) {
  constexpr int64_t kMaxSize = int64_t{1} << 31;
  const std::pair<const char*, int64_t> sizes[] = {
      {"total_seqlen", total_seqlen}, {"cp_size", cp_size}, {"chunk_size", chunk_size}};
  for (const auto& [name, size] : sizes) {
    require(0 < size && size <= kMaxSize, "compute_pad_size: {} must lie in [1, 2^31] (got {})", name, size);
  }
  const int64_t unit = cp_size * chunk_size;
  return (unit - total_seqlen % unit) % unit;
}

Plan make_plan(const Mask& mask, const DistAttnConfig& config) {
  validate_plan_request(mask, config, "make_plan");
  if (config.strategy.name != Strategy::kAuto) return plan_for_strategy(mask, config);
  return choose_plan(config, grid_candidates(mask, config),
                     [&](const DistAttnConfig& chosen) { return plan_for_strategy(mask, chosen); });
}

Plan make_plan(const Mask& mask, const DistAttnConfig& config, const Dispatch& q_dispatch, const Dispatch& k_dispatch) {
  validate_config_of_mask(config, "make_plan");
  validate_dispatch(q_dispatch, config.cp_size, mask.seqlen_q(), "make_plan: q_dispatch");
  validate_dispatch(k_dispatch, config.cp_size, mask.seqlen_k(), "make_plan: k_dispatch");
  if (config.strategy.name != Strategy::kAuto) return plan_for_strategy(mask, config, q_dispatch, k_dispatch);
  return choose_plan(
      config, grid_candidates(mask, config, &q_dispatch, &k_dispatch),
      [&](const DistAttnConfig& chosen) { return plan_for_strategy(mask, chosen, q_dispatch, k_dispatch); });
}

const std::vector<RankPlan>& Plan::ranks() const& {
  const auto* ranks = std::get_if<std::vector<RankPlan>>(&tables);
  require(ranks != nullptr, "Plan::ranks: plan must move K/V alone (got strategy {} and movement {}): see rank_totals",
          to_string(config.strategy.name), to_string(config.movement.algorithm));
  return *ranks;
}

std::vector<RankPlan> Plan::ranks() && {
  static_cast<void>(ranks());  // refuses other kinds
  return std::get<std::vector<RankPlan>>(std::move(tables));
}

std::vector<RankPlan> Plan::rank_totals() const {
  if (grid() != nullptr) return grid_totals(*this);
  std::vector<RankPlan> totals;
  if (movement() != nullptr) {  // whose areas are of all head groups together
    const int64_t groups = num_head_masks(*this) > 1 ? 1 : movement()->head_groups;
    for (const MovementRank& rank : movement()->forward) totals.push_back({.area = rank.area / groups});
  } else {
    for (const RankPlan& rank : ranks()) {
      totals.push_back({.area = rank.area, .kv_rows = rank.kv_rows, .remote_kv_rows = rank.remote_kv_rows});
    }
  }
  return totals;
}

double Plan::balance() const {
  int64_t largest = 0;
  for (const RankPlan& rank : rank_totals()) largest = std::max(largest, rank.area);
  return mask.area() == 0 ? 1 : static_cast<double>(largest) * cp_size() / static_cast<double>(mask.area());
}

int64_t Plan::rows_moved() const {
  int64_t rows = 0;
  for (const RankPlan& rank : rank_totals()) rows += rank.remote_kv_rows;
  return rows;
}

}  // namespace tangram
