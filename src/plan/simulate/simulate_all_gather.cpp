// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// AllGather: every rank gathers all K/V before it computes, in both passes, and gradients are scattered back at the
// end. Nothing overlaps. Between nodes a row crosses once for each node, as ring collectives over all network cards do.
#include <algorithm>

#include "plan/cost.hpp"
#include "plan/runs.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

StrategyPrediction simulate_all_gather(const SimInput& input) {
  StrategyPrediction prediction;
  if (!input.mask.is_self_attention()) {
    prediction.infeasible = "needs self-attention";
    return prediction;
  }
  const DistAttnConfig& config = input.config;
  const int cp_size = input.cp_size();
  const Dispatch dispatch = baseline_dispatch(input.mask.seqlen_q(), cp_size);
  const auto slices = cut_by_rank(input.mask, owned_runs(dispatch), cp_size);
  const double rows = static_cast<double>(dispatch.rows_per_rank());
  // What a rank receives, in rows; a copy from each other rank.
  Transfer gathered;
  gathered.inside = {rows * (cp_size - 1), static_cast<double>(cp_size - 1)};
  if (input.num_nodes() > 1) {
    const double ranks_away = cp_size - input.machine.ranks_per_node;
    gathered.between = {rows * ranks_away / input.machine.ranks_per_node, ranks_away / input.machine.ranks_per_node};
    gathered.inside.bytes -= gathered.between.bytes;
    gathered.inside.copies -= gathered.between.copies;
  }
  const Transfer cast = scaled(gathered, static_cast<double>(kv_row_bytes(config.heads)));
  const Transfer grads = scaled(gathered, static_cast<double>(kv_grad_row_bytes(config.heads, config.reduce_dtype)));
  const double cast_s = transfer_seconds(input.machine, cast);
  const double grad_s = transfer_seconds(input.machine, grads);
  SlowestPass forward;
  SlowestPass backward;
  for (int r = 0; r < cp_size; ++r) {
    const std::vector<AttnSlice>& own = slices[static_cast<size_t>(r)];
    const double heads = config.heads.num_heads_q;
    const double forward_s = work_seconds(input, Pass::kForward, count_work(own, input.machine.forward), heads, false);
    const double backward_s =
        work_seconds(input, Pass::kBackward, count_work(own, input.machine.backward), heads, false);
    forward.take({forward_s + cast_s, forward_s});
    backward.take({backward_s + cast_s + grad_s, backward_s});
  }
  set_times(prediction, forward, backward);
  prediction.forward_bytes = cp_size * cast.bytes();
  prediction.backward_bytes = cp_size * (cast.bytes() + grads.bytes());
  prediction.between_bytes = cp_size * (2 * cast.between.bytes + grads.between.bytes);
  prediction.max_rank_bytes = 2 * cast.bytes() + grads.bytes();
  prediction.kv_rows_moved = input.mask.seqlen_k() * (cp_size - 1);
  prediction.peak_bytes = static_cast<double>(
      step_peak_bytes(config, dispatch.rows_per_rank(), dispatch.rows_per_rank(), input.mask.seqlen_k()));
  prediction.balance = balance_of(input, slices);
  return prediction;
}

}  // namespace tangram::sim
