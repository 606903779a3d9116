// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/clock/kv_time.hpp"

#include <algorithm>
#include <array>

#include "plan/cost.hpp"

namespace tangram {

namespace {

// Area, rows and copies of each stage of a rank, with the local one; the forward pass names the stages.
std::vector<StageLoad> stage_loads(const RankPlan& rank, int self, int num_stages) {
  std::vector<StageLoad> loads(static_cast<size_t>(num_stages) + 1);
  for (const KvSegment& segment : rank.segments) {
    if (segment.owner == self) continue;
    StageLoad& load = loads[static_cast<size_t>(segment.stage_fwd)];
    load.rows += segment.global.size();
    ++load.num_copies;
  }
  const std::vector<int64_t> areas = stage_areas(rank, num_stages, AttnPass::kForward);
  for (size_t i = 0; i < loads.size(); ++i) loads[i].area = areas[i];
  return loads;
}

struct PassSeconds {
  double forward = 0;
  double backward = 0;
};

// Times of the slowest ranks if a pass had `num_stages` remote stages: equally many are the same stages for both.
PassSeconds slowest_passes(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, int num_stages) {
  std::vector<std::vector<StageLoad>> loads;
  RankPlan trial;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const RankPlan& rank = ranks[static_cast<size_t>(r)];
    trial.segments = rank.segments;
    trial.slices = rank.slices;
    assign_stages(trial, r, {num_stages, 0}, false);
    loads.push_back(stage_loads(trial, r, num_stages));
  }
  return {slowest_of(kv_times(config, loads, AttnPass::kForward, false)).total_s,
          slowest_of(kv_times(config, loads, AttnPass::kBackward, false)).total_s};
}

double attend_seconds(const DistAttnConfig& config, const StageLoad& load, bool is_local, AttnPass pass) {
  double seconds = compute_seconds(config, load.area, pass) + (is_local ? 0 : config.cost.stage_overhead_s);
  if (pass == AttnPass::kBackward && load.area > 0) {
    seconds += config.cost.backward_key_row_s * static_cast<double>(load.rows * config.heads.num_heads_q);
  }
  return seconds;
}

}  // namespace

std::vector<RankTime> kv_times(const DistAttnConfig& config, const std::vector<std::vector<StageLoad>>& loads,
                               AttnPass pass, bool kept_first, ClockTrace* trace) {
  const int num_stages = static_cast<int>(loads.front().size()) - 1;
  const int64_t cast_bytes = kv_row_bytes(config.heads);
  const int64_t grad_bytes = kv_grad_row_bytes(config.heads, config.reduce_dtype);
  StagedPass staged = staged_pass(loads.size(), num_stages);
  for (size_t r = 0; r < loads.size(); ++r) {
    int64_t rows = 0;
    for (size_t s = 0; s < loads[r].size(); ++s) {
      const StageLoad& load = loads[r][s];
      StageSeconds& stage = staged.stage(r, s);
      stage.attend_s = attend_seconds(config, load, s == 0, pass);
      if (load.rows == 0) continue;
      stage.cast_s = transfer_seconds(config.cost, load.rows, cast_bytes, load.num_copies);
      stage.return_s = transfer_seconds(config.cost, load.rows, grad_bytes, load.num_copies);
      rows += load.rows;
    }
    // About as many gradients come as leave: read, and added to those that are there.
    staged.merge_s[r] = memory_seconds(config.cost, 2 * rows * grad_bytes);
  }
  return time_of(staged, *kv_skeleton(pass, num_stages, kept_first && num_stages > 0), trace);
}

std::vector<RankTime> kv_times(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, AttnPass pass,
                               ClockTrace* trace) {
  std::vector<std::vector<StageLoad>> loads;
  for (const RankPlan& rank : ranks) {
    loads.emplace_back();
    for (const Stage& stage : pass == AttnPass::kForward ? rank.forward : rank.backward) {
      loads.back().push_back(
          {stage.area, stage.exchange.rows_received(), static_cast<int64_t>(stage.exchange.recvs.size())});
    }
  }
  const bool kept_first = pass == AttnPass::kBackward && ranks.front().backward.back().kept;
  return kv_times(config, loads, pass, kept_first, trace);
}

StageCounts choose_stage_counts(const DistAttnConfig& config, const std::vector<RankPlan>& ranks) {
  const OverlapConfig& overlap = config.overlap;
  const bool any_remote =
      std::any_of(ranks.begin(), ranks.end(), [](const RankPlan& rank) { return rank.remote_kv_rows > 0; });
  StageCounts counts{overlap.num_stages_fwd, overlap.num_stages_bwd};
  // Where nothing is remote there is nothing to stage, and the choice is to have none.
  if (!any_remote || (counts.forward > 0 && counts.backward > 0)) return counts;
  std::array<PassSeconds, kMaxAutoStages + 1> seconds;
  for (int count = 1; count <= kMaxAutoStages; ++count) {
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
  return predicted(slowest_of(kv_times(config, ranks, AttnPass::kForward)),
                   slowest_of(kv_times(config, ranks, AttnPass::kBackward)));
}

}  // namespace tangram
