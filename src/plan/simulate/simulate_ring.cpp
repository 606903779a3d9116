// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ring: K/V blocks go round from neighbour to neighbour, cp_size - 1 hops forward; backward once more, with the
// gradients of each block behind it and home in the end. Every block visits every rank, seen or not.
#include <algorithm>

#include "plan/cost.hpp"
#include "plan/runs.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

namespace {

// seconds[r][s]: what rank r computes in step s, with the block of rank r - s.
std::vector<std::vector<float>> step_seconds(const SimInput& input, const Dispatch& dispatch, Pass pass,
                                             const std::vector<std::vector<AttnSlice>>& slices) {
  const int cp_size = input.cp_size();
  const std::vector<OwnedRun> runs = owned_runs(dispatch);
  std::vector<std::vector<float>> seconds(static_cast<size_t>(cp_size));
  std::vector<Work> work(static_cast<size_t>(cp_size));
  for (int r = 0; r < cp_size; ++r) {
    std::fill(work.begin(), work.end(), Work{});
    for (const AttnSlice& slice : slices[static_cast<size_t>(r)]) {
      auto run = std::upper_bound(runs.begin(), runs.end(), slice.k_range.begin,
                                  [](int64_t row, const OwnedRun& candidate) { return row < candidate.global.end; });
      for (; run != runs.end() && run->global.begin < slice.k_range.end; ++run) {
        const bool whole = run->global.contains(slice.k_range);
        work[static_cast<size_t>(run->owner)] +=
            count_work(whole ? slice : cut_columns(slice, run->global), input.kernel(pass));
      }
    }
    std::vector<float>& row = seconds[static_cast<size_t>(r)];
    row.resize(static_cast<size_t>(cp_size));
    for (int s = 0; s < cp_size; ++s) {
      const Work& block = work[static_cast<size_t>((r - s + cp_size) % cp_size)];
      double step = work_seconds(input, pass, block, input.config.heads.num_heads_q, cp_size > 1);
      if (s > 0 && block.area > 0) step += input.machine.stage_overhead_s;
      row[static_cast<size_t>(s)] = static_cast<float>(step);
    }
  }
  return seconds;
}

// Two buffers a rank: the block of step s + 1 is received while step s computes, from a neighbour that is at least as
// far. A block's gradients follow when it has been computed with.
SlowestPass play_ring(const SimInput& input, Pass pass, const std::vector<std::vector<float>>& seconds,
                      double block_bytes, double grad_bytes) {
  const int cp_size = input.cp_size();
  const size_t num_ranks = static_cast<size_t>(cp_size);
  const bool hides = input.machine.engine != CommEngine::kHostThreads;
  // What a hop into rank r takes.
  const auto hop_seconds = [&](int r, double bytes) {
    const bool crosses = input.node_of(r) != input.node_of((r + cp_size - 1) % cp_size);
    Transfer hop;
    (crosses ? hop.between : hop.inside) = {bytes, 1};
    return transfer_seconds(input.machine, hop);
  };
  std::vector<double> block_hop(num_ranks), grad_hop(num_ranks);
  for (int r = 0; r < cp_size; ++r) {
    block_hop[static_cast<size_t>(r)] = hop_seconds(r, block_bytes);
    grad_hop[static_cast<size_t>(r)] = pass == Pass::kBackward ? hop_seconds(r, grad_bytes) : 0;
  }
  std::vector<double> start(num_ranks), done(num_ranks), next_start(num_ranks), next_done(num_ranks);
  std::vector<Played> played(num_ranks);
  for (int s = 0; s < cp_size; ++s) {
    for (size_t r = 0; r < num_ranks; ++r) {
      const size_t from = (r + num_ranks - 1) % num_ranks;
      const double compute = seconds[r][static_cast<size_t>(s)];
      double arrived = 0;
      double grads_here = 0;
      if (s > 0) {
        arrived = std::max(start[r], start[from]) + block_hop[r];
        grads_here = done[from] + grad_hop[r];
      }
      const double moving = hides || s == 0 ? 0 : block_hop[r] + grad_hop[r];
      next_start[r] = std::max(done[r], arrived);
      next_done[r] = std::max(next_start[r] + compute + moving, pass == Pass::kBackward ? grads_here : 0);
      played[r].compute_s += compute;
    }
    std::swap(start, next_start);
    std::swap(done, next_done);
  }
  SlowestPass slowest;
  for (size_t r = 0; r < num_ranks; ++r) {
    played[r].total_s = done[r];
    if (cp_size > 1) played[r].total_s = std::max(done[r], done[(r + num_ranks - 1) % num_ranks] + grad_hop[r]);
    slowest.take(played[r]);
  }
  return slowest;
}

}  // namespace

StrategyPrediction simulate_ring(const SimInput& input) {
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
  const double block_bytes = rows * static_cast<double>(kv_row_bytes(config.heads));
  const double grad_bytes = rows * static_cast<double>(kv_grad_row_bytes(config.heads, config.reduce_dtype));
  SlowestPass passes[2];
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    passes[static_cast<size_t>(pass)] =
        play_ring(input, pass, step_seconds(input, dispatch, pass, slices), block_bytes, grad_bytes);
  }
  set_times(prediction, passes[0], passes[1]);
  const double hops = cp_size - 1;
  const double grad_hops = cp_size > 1 ? cp_size : 0;
  const double crossing = input.num_nodes() > 1 ? input.num_nodes() : 0;
  prediction.forward_bytes = cp_size * hops * block_bytes;
  prediction.backward_bytes = cp_size * (hops * block_bytes + grad_hops * grad_bytes);
  prediction.between_bytes = crossing * (2 * hops * block_bytes + grad_hops * grad_bytes);
  prediction.max_rank_bytes = 2 * hops * block_bytes + grad_hops * grad_bytes;
  prediction.kv_rows_moved = input.mask.seqlen_k() * (cp_size - 1);
  // The block at work and the one that arrives, with their gradients.
  const int64_t buffer_rows = (cp_size > 1 ? 2 : 1) * dispatch.rows_per_rank();
  prediction.peak_bytes =
      static_cast<double>(step_peak_bytes(config, dispatch.rows_per_rank(), dispatch.rows_per_rank(), buffer_rows));
  prediction.balance = balance_of(input, slices);
  return prediction;
}

}  // namespace tangram::sim
