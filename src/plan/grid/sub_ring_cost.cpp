// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What HybridCP moves, in closed form, and how long its steps take in the cost model.
#include "plan/clock/grid_time.hpp"
#include "plan/cost.hpp"
#include "plan/grid/grid_bytes.hpp"
#include "plan/grid/sub_ring_layout.hpp"
#include "plan/nodes/node_shape.hpp"

namespace tangram {

namespace {

constexpr int64_t kCopiesOfStep = 2;  // K and V

std::vector<SubRingSeconds> sub_ring_seconds(const DistAttnConfig& config, const std::vector<SubRingLoad>& steps,
                                             int64_t q_rows, AttnPass pass) {
  const int64_t kv = kv_row_bytes(config.heads), grads = kv_grad_row_bytes(config.heads, config.reduce_dtype);
  const auto link_s = [&](int64_t rows, int64_t row_bytes) {
    if (rows == 0) return 0.0;
    if (!has_nodes(config)) return transfer_seconds(config.cost, rows, row_bytes, kCopiesOfStep);
    // Priced as if every ring crossed nodes: a ring is as fast as its slowest hop.
    return static_cast<double>(rows * row_bytes) / config.cost.between_bytes_per_s +
           kCopiesOfStep * config.cost.between_message_s;
  };
  const HeadConfig& heads = config.heads;
  const auto memory_s = [&](int64_t bytes) { return memory_seconds(config.cost, bytes); };
  const double further_s =
      config.cost.stage_overhead_s + memory_s(further_call_bytes(heads, pass, q_rows, heads.num_heads_q));
  bool sums = false;
  for (size_t s = 1; s < steps.size(); ++s) sums = sums || steps[s].area > 0;
  std::vector<SubRingSeconds> seconds;
  for (size_t s = 0; s < steps.size(); ++s) {
    const int64_t next_rows = s + 1 < steps.size() ? steps[s + 1].rows : 0;
    double more = 0;
    if (s == 0) {
      if (sums) more = memory_s(rounding_bytes(heads, pass, q_rows, heads.num_heads_q));
    } else if (steps[s].area > 0) {
      more = further_s;
      if (pass == AttnPass::kBackward) {
        more += config.cost.backward_key_row_s * static_cast<double>(steps[s].rows * heads.num_heads_q) +
                memory_s(3 * steps[s].rows * grads);
      }
    }
    const bool has_grads = pass == AttnPass::kBackward && s > 0;
    seconds.push_back({compute_seconds(config, steps[s].area, pass) + more, link_s(next_rows, kv),
                       has_grads ? link_s(next_rows + steps[s].rows_home, grads) : 0});
  }
  return seconds;
}

}  // namespace

std::vector<RankTime> sub_ring_times(const DistAttnConfig& config, const SubRingLoads& loads, int64_t q_rows,
                                     AttnPass pass, ClockTrace* trace) {
  std::vector<std::vector<SubRingSeconds>> seconds;
  for (const std::vector<SubRingLoad>& steps : loads) seconds.push_back(sub_ring_seconds(config, steps, q_rows, pass));
  return time_of(seconds, pass == AttnPass::kBackward, true, trace);
}

PredictedTime predict_sub_rings(const DistAttnConfig& config, const SubRingLoads& loads, int64_t q_rows) {
  return predicted(slowest_of(sub_ring_times(config, loads, q_rows, AttnPass::kForward)),
                   slowest_of(sub_ring_times(config, loads, q_rows, AttnPass::kBackward)));
}

GridTraffic sub_ring_traffic(const DistAttnConfig& config, const std::vector<SubGroupLevel>& levels) {
  int64_t rows = 0;
  for (const SubGroupLevel& level : levels) rows += (level.ranks - 1) * level.k_rows;
  const int64_t kv = rows * kv_row_bytes(config.heads);
  return {kv, kv + rows * kv_grad_row_bytes(config.heads, config.reduce_dtype)};
}

}  // namespace tangram
