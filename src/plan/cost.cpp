// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/cost.hpp"

#include <algorithm>
#include <array>

#include "tangram/dtype.hpp"

namespace tangram {

namespace {

constexpr int kMaxStages = 4;  // more never paid in the model: each adds stage_overhead_s and chops slices

// Area, rows and copies of each stage of a rank, with the local one; the forward pass names the stages.
std::vector<StageLoad> stage_loads(const RankPlan& rank, int self, int num_stages) {
  std::vector<StageLoad> loads(static_cast<size_t>(num_stages) + 1);
  for (const KvSegment& segment : rank.segments) {
    if (segment.owner == self) continue;
    StageLoad& load = loads[static_cast<size_t>(segment.stage_fwd)];
    load.rows += segment.global.size();
    ++load.num_copies;
  }
  const std::vector<int64_t> areas = stage_areas(rank, num_stages, Pass::kForward);
  for (size_t i = 0; i < loads.size(); ++i) loads[i].area = areas[i];
  return loads;
}

struct PassSeconds {
  double forward = 0;
  double backward = 0;
};

// Times of the slowest ranks if a pass had `num_stages` remote stages: equally many are the same stages for both.
PassSeconds slowest_passes(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, int num_stages) {
  PassSeconds slowest;
  RankPlan trial;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const RankPlan& rank = ranks[static_cast<size_t>(r)];
    trial.segments = rank.segments;
    trial.slices = rank.slices;
    assign_stages(trial, r, {num_stages, 0}, false);
    const std::vector<StageLoad> loads = stage_loads(trial, r, num_stages);
    slowest.forward = std::max(slowest.forward, pass_time(config, loads, Pass::kForward, false).total_s);
    slowest.backward = std::max(slowest.backward, pass_time(config, loads, Pass::kBackward, false).total_s);
  }
  return slowest;
}

}  // namespace

double flops_per_head_cell(const HeadConfig& heads, Pass pass) {
  return 2.0 *
         (pass == Pass::kForward ? heads.head_dim + heads.head_dim_v : 3.0 * heads.head_dim + 2.0 * heads.head_dim_v);
}

double compute_seconds(const DistAttnConfig& config, int64_t area, Pass pass) {
  const double rate = pass == Pass::kForward ? config.cost.forward_flops_per_s : config.cost.backward_flops_per_s;
  return static_cast<double>(area) * config.heads.num_heads_q * flops_per_head_cell(config.heads, pass) / rate;
}

int64_t kv_row_bytes(const HeadConfig& heads) {
  return int64_t{heads.num_heads_kv} * (heads.head_dim + heads.head_dim_v) * static_cast<int64_t>(size_of(heads.dtype));
}

int64_t kv_grad_row_bytes(const HeadConfig& heads, DType reduce_dtype) {
  return int64_t{heads.num_heads_kv} * (heads.head_dim + heads.head_dim_v) *
         static_cast<int64_t>(size_of(reduce_dtype));
}

double visible_row_seconds(const DistAttnConfig& config) {
  const int64_t bytes = 2 * kv_row_bytes(config.heads) + kv_grad_row_bytes(config.heads, config.reduce_dtype);
  return kVisibleShare * transfer_seconds(config.cost, 1, bytes, 0);
}

double transfer_seconds(const CostModel& cost, int64_t rows, int64_t row_bytes, int64_t num_copies) {
  return static_cast<double>(rows) * static_cast<double>(row_bytes) / cost.link_bytes_per_s +
         static_cast<double>(num_copies) * cost.copy_latency_s;
}

PassTime pass_time(const DistAttnConfig& config, const std::vector<StageLoad>& loads, Pass pass, bool kept_first) {
  // Execution order; see NOTE [kept stage] in plan.hpp.
  std::vector<size_t> order;
  if (kept_first && loads.size() > 1) order.push_back(loads.size() - 1);
  if (!kept_first) order.push_back(0);
  for (size_t i = 1; i + (kept_first ? 1 : 0) < loads.size(); ++i) order.push_back(i);
  if (kept_first) order.push_back(0);

  const int64_t cast_bytes = kv_row_bytes(config.heads);
  const int64_t grad_bytes = kv_grad_row_bytes(config.heads, config.reduce_dtype);
  double compute_done = 0;   // of the stage before
  double compute_start = 0;  // of the stage before: when the cast of this one was posted
  double arrived = 0;        // last cast
  double reduced = 0;        // last group_reduce
  double busy = 0;
  for (size_t n = 0; n < order.size(); ++n) {
    const StageLoad& load = loads[order[n]];
    const bool is_local = order[n] == 0;
    const bool cast = !is_local && !(kept_first && n == 0);
    if (cast && load.rows > 0) {
      arrived =
          std::max(arrived, compute_start) + transfer_seconds(config.cost, load.rows, cast_bytes, load.num_copies);
    }
    const double start = cast && load.rows > 0 ? std::max(compute_done, arrived) : compute_done;
    double seconds = compute_seconds(config, load.area, pass) + (is_local ? 0 : config.cost.stage_overhead_s);
    if (pass == Pass::kBackward && load.area > 0) {
      seconds += config.cost.backward_key_row_s * static_cast<double>(load.rows * config.heads.num_heads_q);
    }
    busy += seconds;
    compute_start = start;
    compute_done = start + seconds;
    if (pass == Pass::kBackward && load.rows > 0) {
      reduced = std::max(reduced, compute_done) + transfer_seconds(config.cost, load.rows, grad_bytes, load.num_copies);
    }
  }
  double total = std::max(compute_done, reduced);
  if (pass == Pass::kBackward) {  // about as many gradients come as leave: read, and added to those that are there
    int64_t rows = 0;
    for (const StageLoad& load : loads) rows += load.rows;
    const double merge_s = static_cast<double>(2 * rows * grad_bytes) / config.cost.memory_bytes_per_s;
    total += merge_s;
    busy += merge_s;
  }
  return {total, std::max(0.0, total - busy)};  // never below by rounding
}

StageCounts choose_stage_counts(const DistAttnConfig& config, const std::vector<RankPlan>& ranks) {
  const OverlapConfig& overlap = config.overlap;
  const bool any_remote =
      std::any_of(ranks.begin(), ranks.end(), [](const RankPlan& rank) { return rank.remote_kv_rows > 0; });
  StageCounts counts{overlap.num_stages_fwd, overlap.num_stages_bwd};
  // Where nothing is remote there is nothing to stage, and the choice is to have none.
  if (!any_remote || (counts.forward > 0 && counts.backward > 0)) return counts;
  std::array<PassSeconds, kMaxStages + 1> seconds;
  for (int count = 1; count <= kMaxStages; ++count) {
    seconds[static_cast<size_t>(count)] = slowest_passes(config, ranks, count);
  }
  const auto best_from = [&](int min_count, double PassSeconds::* pass) {
    const auto first = seconds.begin() + min_count;
    const auto faster = [&](const PassSeconds& a, const PassSeconds& b) { return a.*pass < b.*pass; };
    return static_cast<int>(std::min_element(first, seconds.end(), faster) - seconds.begin());
  };
  if (counts.forward == 0) counts.forward = best_from(1, &PassSeconds::forward);
  // A kept stage of several is a stage of its own.
  const int min_backward = overlap.keep_remote_kv && counts.forward > 1 ? 2 : 1;
  if (counts.backward == 0) counts.backward = best_from(min_backward, &PassSeconds::backward);
  return counts;
}

PredictedTime predict(const DistAttnConfig& config, const std::vector<RankPlan>& ranks) {
  PassTime forward;
  PassTime backward;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const RankPlan& rank = ranks[static_cast<size_t>(r)];
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const std::vector<Stage>& stages = pass == Pass::kForward ? rank.forward : rank.backward;
      std::vector<StageLoad> loads;
      for (const Stage& stage : stages) {
        loads.push_back(
            {stage.area, stage.exchange.rows_received(), static_cast<int64_t>(stage.exchange.recvs.size())});
      }
      const bool kept_first = pass == Pass::kBackward && !stages.empty() && stages.back().kept;
      const PassTime time = pass_time(config, loads, pass, kept_first);
      PassTime& slowest = pass == Pass::kForward ? forward : backward;
      if (time.total_s > slowest.total_s) slowest = time;
    }
  }
  return {forward.total_s, backward.total_s, forward.exposed_s + backward.exposed_s};
}

}  // namespace tangram
