// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tangram: the planner's own dispatch, rows that are needed and nothing else, stages that overlap.
#include <algorithm>

#include "core/require.hpp"
#include "plan/clock/kv_time.hpp"
#include "plan/cost.hpp"
#include "plan/dispatch.hpp"
#include "plan/rank_plan.hpp"
#include "plan/simulate/plan_sketch.hpp"
#include "plan/simulate/rank_needs.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

namespace {

struct TangramSim {
  const SimInput& input;
  KeyRuns runs;
  std::vector<RankNeeds> ranks;

  bool any_remote() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const RankNeeds& needs) { return needs.remote_rows > 0; });
  }

  void set_rank(int rank, AttnPass pass, StagedPass& staged) const {
    const RankNeeds& needs = ranks[static_cast<size_t>(rank)];
    const DistAttnConfig& config = input.config;
    const int node = input.node_of(rank);
    const StagedNeeds split = split_stages(needs, runs, node, staged.num_stages, input.kernel(pass));
    const double cast_bytes = static_cast<double>(kv_row_bytes(config.heads));
    const double grad_bytes = static_cast<double>(kv_grad_row_bytes(config.heads, config.reduce_dtype));
    const bool has_remote = needs.remote_rows > 0;
    for (size_t s = 0; s < split.work.size(); ++s) {
      StageSeconds& stage = staged.stage(static_cast<size_t>(rank), s);
      const double keys = s == 0 ? static_cast<double>(needs.buffer_rows - needs.remote_rows) : split.rows[s].bytes();
      const Work work = of_one_call(split.work[s], keys, input.kernel(pass));
      stage.attend_s = work_seconds(input, pass, work, config.heads.num_heads_q, has_remote);
      if (s == 0) {
        // Local rows are copied to their places among the remote ones.
        const double local_rows = has_remote ? static_cast<double>(needs.buffer_rows - needs.remote_rows) : 0;
        stage.attend_s += copy_seconds(input.machine, local_rows * cast_bytes);
        continue;
      }
      stage.attend_s += input.machine.stage_overhead_s;
      // Where copy engines move rows one launch computes all stages, and results stay on the chip.
      if (input.machine.engine != CommEngine::kCopyEngine && split.work[s].area > 0) {
        stage.attend_s +=
            accumulate_seconds(input, pass, input.mask.seqlen_q() / input.cp_size(), config.heads.num_heads_q);
      }
      if (split.rows[s].empty()) continue;
      stage.cast_s = transfer_seconds(input.machine, scaled(split.rows[s], cast_bytes));
      stage.return_s = transfer_seconds(input.machine, scaled(split.rows[s], grad_bytes));
    }
    // About as many gradients come as leave: read, and added to those that are there.
    staged.merge_s[static_cast<size_t>(rank)] =
        packing_seconds(input.machine, static_cast<double>(2 * needs.remote_rows) * grad_bytes);
  }

  SlowestPass play(AttnPass pass, int num_stages) const {
    StagedPass staged = staged_pass(ranks.size(), num_stages);
    staged.hides = hides_transfers(input.machine);
    for (int r = 0; r < input.cp_size(); ++r) set_rank(r, pass, staged);
    SlowestPass slowest;
    slowest.take(time_of(staged, *kv_skeleton(pass, num_stages, false)));
    return slowest;
  }

  // A pass with the configured number of stages, or the best.
  struct BestPass {
    SlowestPass pass;
    int num_stages = 0;
  };
  BestPass play_best(AttnPass pass) const {
    const OverlapConfig& overlap = input.config.overlap;
    const int given = pass == AttnPass::kForward ? overlap.num_stages_fwd : overlap.num_stages_bwd;
    if (!any_remote() || given > 0) return {play(pass, any_remote() ? given : 0), given};
    BestPass best{play(pass, 1), 1};
    for (int count = 2; count <= kMaxAutoStages; ++count) {
      const SlowestPass trial = play(pass, count);
      if (trial.total_s < best.pass.total_s) best = {trial, count};
    }
    return best;
  }

  // No rank's link may be asked for more than a pass has time for, on its sending side too.
  void bound_by_senders(SlowestPass& forward, SlowestPass& backward) const {
    const double cast_bytes = static_cast<double>(kv_row_bytes(input.config.heads));
    const double grad_bytes = static_cast<double>(kv_grad_row_bytes(input.config.heads, input.config.reduce_dtype));
    const std::vector<Transfer> sent = sent_rows(ranks, runs, input);
    for (size_t r = 0; r < sent.size(); ++r) {
      const double cast_s = transfer_seconds(input.machine, scaled(sent[r], cast_bytes));
      const double grad_s = transfer_seconds(input.machine, scaled(sent[r], grad_bytes));
      forward.take(RankTime{cast_s, forward.compute_s});
      backward.take(RankTime{std::max(cast_s, grad_s), backward.compute_s});
    }
  }

  // How many stages the backward pass of a plan has. Memory depends on it only if gradients move in fewer bytes than
  // they are summed in. The planner, which knows less of the machine, may choose otherwise than `played`.
  int planned_stages(const Dispatch& q_dispatch, const Dispatch& k_dispatch, int played) const {
    const bool is_given = input.config.overlap.num_stages_bwd > 0;
    if (is_given || !any_remote() || input.config.reduce_dtype == DType::kFloat32) return played;
    if (input.cp_size() > kMaxPlannedRanks) return played;
    const std::vector<RankPlan> ranks = make_rank_plans(input.mask, q_dispatch, k_dispatch);
    const Crossing crossing = crossing_of(input.config, ranks, owned_runs(k_dispatch));
    return choose_stage_counts(input.config, ranks, crossing).backward;
  }

  void count(StrategyPrediction& prediction, KvSketch sketch) const {
    const DistAttnConfig& config = input.config;
    const double cast_bytes = static_cast<double>(kv_row_bytes(config.heads));
    const double grad_bytes = static_cast<double>(kv_grad_row_bytes(config.heads, config.reduce_dtype));
    const std::vector<Transfer> sent = sent_rows(ranks, runs, input);
    double largest_area = 0;
    for (int r = 0; r < input.cp_size(); ++r) {
      const RankNeeds& needs = ranks[static_cast<size_t>(r)];
      Transfer rows;
      for (const RemotePiece& piece : needs.remote) rows += rows_of_piece(piece.global, runs, input.node_of(r));
      const Transfer cast = scaled(rows, cast_bytes);
      const Transfer grads = scaled(rows, grad_bytes);
      prediction.kv_rows_moved += needs.remote_rows;
      prediction.forward_bytes += cast.bytes();
      prediction.backward_bytes += cast.bytes() + grads.bytes();
      prediction.between_bytes += 2 * cast.between.bytes + grads.between.bytes;
      prediction.max_rank_bytes = std::max(prediction.max_rank_bytes, 2 * cast.bytes() + grads.bytes());
      const double crossing = std::max(rows.between.bytes, sent[static_cast<size_t>(r)].between.bytes);
      prediction.busiest_card_bytes = std::max(prediction.busiest_card_bytes, crossing * (2 * cast_bytes + grad_bytes));
      prediction.peak_bytes = std::max(prediction.peak_bytes, static_cast<double>(sketch.peak_bytes(needs)));
      largest_area = std::max(largest_area, count_work(needs.slices, input.machine.forward).area);
    }
    const double mean = static_cast<double>(input.mask.area()) / input.cp_size();
    prediction.balance = mean > 0 ? largest_area / mean : 1;
  }
};

}  // namespace

StrategyPrediction simulate_tangram(const SimInput& input) {
  require(!input.config.overlap.keep_remote_kv, "simulate: keep_remote_kv is not modelled; leave it off");
  StrategyPrediction prediction;
  const Dispatch q_dispatch = dispatch_queries(input.mask, input.config).dispatch;
  const Dispatch k_dispatch =
      input.mask.is_self_attention() ? q_dispatch : dispatch_keys(input.mask, q_dispatch, input.config);
  TangramSim sim{input, key_runs(k_dispatch, input), {}};
  std::vector<std::vector<AttnSlice>> slices = cut_by_rank(input.mask, owned_runs(q_dispatch), input.cp_size());
  for (int r = 0; r < input.cp_size(); ++r) {
    sim.ranks.push_back(needs_of(std::move(slices[static_cast<size_t>(r)]), sim.runs, r));
  }
  SlowestPass forward = sim.play_best(AttnPass::kForward).pass;
  auto [backward, backward_stages] = sim.play_best(AttnPass::kBackward);
  sim.bound_by_senders(forward, backward);
  set_times(prediction, forward, backward);
  sim.count(prediction, KvSketch(input.config, q_dispatch, k_dispatch, sim.any_remote(),
                                 sim.planned_stages(q_dispatch, k_dispatch, backward_stages)));
  return prediction;
}

}  // namespace tangram::sim
