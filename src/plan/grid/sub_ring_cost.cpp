// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What HybridCP moves, in closed form, and how long its steps take in the cost model.
#include <algorithm>

#include "plan/cost.hpp"
#include "plan/grid/grid.hpp"
#include "plan/grid/grid_time.hpp"

namespace tangram {

namespace {

constexpr int64_t kCopiesOfTurn = 2;  // K and V

GridTime play_rank(const Plan& plan, const std::vector<GridStep>& steps, Pass pass) {
  const DistAttnConfig& config = plan.config;
  const int64_t kv = kv_row_bytes(config.heads), grads = kv_grad_row_bytes(config.heads, config.reduce_dtype);
  const auto link_s = [&](int64_t rows, int64_t row_bytes) {
    return rows == 0 ? 0 : transfer_seconds(config.cost, rows, row_bytes, kCopiesOfTurn);
  };
  GridTime time;
  double grads_s = 0;  // of those that travel while the next step computes
  for (size_t s = 0; s < steps.size(); ++s) {
    const int64_t next_rows = s + 1 < steps.size() ? steps[s + 1].sub_rings.rows : 0;
    const double overhead = s == 0 || steps[s].area == 0 ? 0 : config.cost.stage_overhead_s;
    const double compute = compute_seconds(config, steps[s].area, pass) + overhead;
    time.compute_s += compute;
    time.total_s += std::max(compute, link_s(next_rows, kv) + grads_s);
    if (pass == Pass::kBackward && s > 0) {
      grads_s = link_s(next_rows + steps[s].sub_rings.home.rows_received(), grads);
    }
  }
  time.total_s += grads_s;
  return time;
}

// Rings of different sub-groups do not wait for each other: the slowest rank's steps, one after the other.
GridTime play_slowest(const Plan& plan, Pass pass) {
  GridTime slowest;
  for (const std::vector<GridStep>& steps : plan.grid.steps) {
    const GridTime time = play_rank(plan, steps, pass);
    if (time.total_s > slowest.total_s) slowest = time;
  }
  return slowest;
}

}  // namespace

PredictedTime predict_sub_rings(const Plan& plan) {
  const GridTime forward = play_slowest(plan, Pass::kForward), backward = play_slowest(plan, Pass::kBackward);
  return {forward.total_s, backward.total_s, forward.exposed_s() + backward.exposed_s()};
}

GridTraffic sub_ring_traffic(const Plan& plan) {
  int64_t rows = 0;
  for (const SubGroupLevel& level : plan.grid.levels) rows += (level.ranks - 1) * level.k_rows;
  const int64_t kv = rows * kv_row_bytes(plan.config.heads);
  return {kv, kv + rows * kv_grad_row_bytes(plan.config.heads, plan.config.reduce_dtype)};
}

}  // namespace tangram
