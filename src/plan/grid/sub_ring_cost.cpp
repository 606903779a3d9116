// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What HybridCP moves, in closed form, and how long its steps take in the cost model.
#include "plan/cost.hpp"
#include "plan/grid/grid_time.hpp"
#include "plan/grid/sub_ring_layout.hpp"

namespace tangram {

namespace {

constexpr int64_t kCopiesOfTurn = 2;  // K and V

GridTime play_rank(const DistAttnConfig& config, const std::vector<SubRingTurn>& steps, Pass pass) {
  const int64_t kv = kv_row_bytes(config.heads), grads = kv_grad_row_bytes(config.heads, config.reduce_dtype);
  const auto link_s = [&](int64_t rows, int64_t row_bytes) {
    return rows == 0 ? 0 : transfer_seconds(config.cost, rows, row_bytes, kCopiesOfTurn);
  };
  std::vector<TurnSeconds> turns;
  for (size_t s = 0; s < steps.size(); ++s) {
    const int64_t next_rows = s + 1 < steps.size() ? steps[s + 1].rows : 0;
    const double overhead = s == 0 || steps[s].area == 0 ? 0 : config.cost.stage_overhead_s;
    const bool has_grads = pass == Pass::kBackward && s > 0;
    turns.push_back({compute_seconds(config, steps[s].area, pass) + overhead, link_s(next_rows, kv),
                     has_grads ? link_s(next_rows + steps[s].rows_home, grads) : 0});
  }
  return play_turns(turns, true);
}

// Rings of different sub-groups do not wait for each other: the slowest rank's steps, one after the other.
GridTime play_slowest(const DistAttnConfig& config, const SubRingTurns& turns, Pass pass) {
  GridTime slowest;
  for (const std::vector<SubRingTurn>& steps : turns) {
    const GridTime time = play_rank(config, steps, pass);
    if (time.total_s > slowest.total_s) slowest = time;
  }
  return slowest;
}

}  // namespace

PredictedTime predict_sub_rings(const DistAttnConfig& config, const SubRingTurns& turns) {
  const GridTime forward = play_slowest(config, turns, Pass::kForward);
  const GridTime backward = play_slowest(config, turns, Pass::kBackward);
  return {forward.total_s, backward.total_s, forward.exposed_s() + backward.exposed_s()};
}

GridTraffic sub_ring_traffic(const DistAttnConfig& config, const std::vector<SubGroupLevel>& levels) {
  int64_t rows = 0;
  for (const SubGroupLevel& level : levels) rows += (level.ranks - 1) * level.k_rows;
  const int64_t kv = rows * kv_row_bytes(config.heads);
  return {kv, kv + rows * kv_grad_row_bytes(config.heads, config.reduce_dtype)};
}

}  // namespace tangram
