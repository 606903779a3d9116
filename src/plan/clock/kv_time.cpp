// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/clock/kv_time.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "plan/cost.hpp"
#include "plan/nodes/node_stages.hpp"

namespace tangram {

namespace {

// Area, rows and copies of each stage of a rank, with the local one; the forward pass names the stages.
std::vector<StageLoad> stage_loads(std::span<const KvSegment> segments, std::span<const AttnSlice> slices, int self,
                                   int num_stages) {
  std::vector<StageLoad> loads(static_cast<size_t>(num_stages) + 1);
  for (const KvSegment& segment : segments) {
    if (segment.owner == self) continue;
    StageLoad& load = loads[static_cast<size_t>(segment.stage_fwd)];
    load.rows += segment.global.size();
    ++load.num_copies;
  }
  const std::vector<int64_t> areas = stage_areas(segments, slices, num_stages, AttnPass::kForward);
  for (size_t i = 0; i < loads.size(); ++i) loads[i].area = areas[i];
  return loads;
}

struct PassSeconds {
  double forward = 0;
  double backward = 0;
};

// Adds to the loads of [ranks][1 + stages] what crosses between nodes in each stage.
void add_crossing(const StagedNodeRows& staged, const NodeShape& nodes, std::vector<std::vector<StageLoad>>& loads) {
  for (size_t s = 0; s < staged.size(); ++s) {
    const NodeTraffic traffic = traffic_of(staged[s], nodes);
    for (int node = 0; node < nodes.num_nodes(); ++node) {
      int64_t most = 0;
      int num_messages = 0;
      for (const NodePiece& piece : staged[s][static_cast<size_t>(node)]) {
        const auto sender = static_cast<size_t>(nodes.rank(nodes.node_of(piece.owner), piece.rail));
        const auto relay = static_cast<size_t>(nodes.rank(node, piece.rail));
        most = std::max({most, traffic.sent[sender], traffic.received[relay]});
        num_messages = std::max(num_messages, traffic.messages[relay]);
      }
      for (int rail = 0; rail < nodes.ranks_per_node; ++rail) {
        StageLoad& load = loads[static_cast<size_t>(nodes.rank(node, rail))][s + 1];
        if (load.rows == 0) continue;
        load.between_rows = most;
        load.num_messages = num_messages;
      }
    }
  }
}

// Times of the slowest ranks if a pass had `num_stages` remote stages: equally many are the same stages for both.
PassSeconds slowest_passes(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, const Crossing& crossing,
                           int num_stages) {
  std::vector<std::vector<StageLoad>> loads;
  if (has_nodes(config)) {
    const NodeShape nodes = node_shape(config);
    const std::vector<std::vector<int64_t>> ends = part_ends(crossing.rows, num_stages);
    std::vector<KvSegment> segments;
    for (int r = 0; r < nodes.cp_size; ++r) {
      const RankPlan& rank = ranks[static_cast<size_t>(r)];
      forward_stages_in_parts(rank.segments, r, nodes, ends[static_cast<size_t>(nodes.node_of(r))], segments);
      loads.push_back(stage_loads(segments, rank.slices, r, num_stages));
    }
    add_crossing(by_parts(crossing.rails, ends, num_stages), nodes, loads);
  } else {
    RankPlan trial;
    for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
      const RankPlan& rank = ranks[static_cast<size_t>(r)];
      trial.segments = rank.segments;
      assign_stages(trial, r, {num_stages, 0}, false);
      loads.push_back(stage_loads(trial.segments, rank.slices, r, num_stages));
    }
  }
  return {slowest_of(kv_times(config, loads, AttnPass::kForward, false)).total_s,
          slowest_of(kv_times(config, loads, AttnPass::kBackward, false)).total_s};
}

// Factor on attention in passes that transfer between nodes, which takes multiprocessors.
double margin_factor(const CostModel& cost, const std::vector<std::vector<StageLoad>>& loads) {
  for (const std::vector<StageLoad>& rank : loads) {
    for (const StageLoad& load : rank) {
      if (load.between_rows > 0) return static_cast<double>(cost.sms) / (cost.sms - cost.between_sms);
    }
  }
  return 1;
}

double between_seconds(const CostModel& cost, const StageLoad& load, int64_t row_bytes) {
  return static_cast<double>(load.between_rows) * static_cast<double>(row_bytes) / cost.between_bytes_per_s +
         load.num_messages * cost.between_message_s;
}

double attend_seconds(const DistAttnConfig& config, const StageLoad& load, bool is_local, AttnPass pass,
                      double margin) {
  double seconds = margin * compute_seconds(config, load.area, pass) + (is_local ? 0 : config.cost.stage_overhead_s);
  if (pass == AttnPass::kBackward && load.area > 0) {
    seconds += config.cost.backward_key_row_s * static_cast<double>(load.rows * config.heads.num_heads_q);
  }
  return seconds;
}

}  // namespace

Crossing crossing_of(const DistAttnConfig& config, const std::vector<RankPlan>& ranks,
                     const std::vector<OwnedRun>& k_runs) {
  if (!has_nodes(config)) return {};
  std::vector<std::vector<Range>> needed(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const KvSegment& segment : ranks[r].segments) append_range(needed[r], segment.global);
  }
  Crossing crossing{node_rows(needed, k_runs, node_shape(config)), {}};
  crossing.rails = crossing.rows;
  even_rails(crossing.rails, node_shape(config));
  return crossing;
}

std::vector<RankTime> kv_times(const DistAttnConfig& config, const std::vector<std::vector<StageLoad>>& loads,
                               AttnPass pass, bool kept_first, ClockTrace* trace) {
  const int num_stages = static_cast<int>(loads.front().size()) - 1;
  const int64_t cast_bytes = kv_row_bytes(config.heads);
  const int64_t grad_bytes = kv_grad_row_bytes(config.heads, config.reduce_dtype);
  StagedPass staged = staged_pass(loads.size(), num_stages);
  const double margin = margin_factor(config.cost, loads);
  for (size_t r = 0; r < loads.size(); ++r) {
    int64_t rows = 0, relayed = 0;
    for (size_t s = 0; s < loads[r].size(); ++s) {
      const StageLoad& load = loads[r][s];
      StageSeconds& stage = staged.stage(r, s);
      stage.attend_s = attend_seconds(config, load, s == 0, pass, margin);
      if (load.rows == 0) continue;
      stage.cast_s = transfer_seconds(config.cost, load.rows, cast_bytes, load.num_copies);
      stage.return_s = transfer_seconds(config.cost, load.rows, grad_bytes, load.num_copies);
      rows += load.rows;
      if (load.between_rows == 0) continue;
      // Rows are forwarded inside the node when they have crossed; gradients are added up at the relay first.
      stage.cast_s += between_seconds(config.cost, load, cast_bytes);
      stage.return_s += between_seconds(config.cost, load, grad_bytes);
      stage.crosses = true;
      relayed += load.between_rows;
    }
    // About as many gradients come as leave: read, and added to those that are there.
    staged.merge_s[r] = memory_seconds(config.cost, 2 * (rows + relayed) * grad_bytes);
  }
  return time_of(staged, *kv_skeleton(pass, num_stages, kept_first && num_stages > 0), trace);
}

namespace {

std::vector<RankTime> kv_times(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, AttnPass pass,
                               const Crossing& crossing, ClockTrace* trace) {
  std::vector<std::vector<StageLoad>> loads;
  for (const RankPlan& rank : ranks) {
    loads.emplace_back();
    for (const Stage& stage : pass == AttnPass::kForward ? rank.forward : rank.backward) {
      loads.back().push_back(
          {stage.area, stage.exchange.rows_received(), static_cast<int64_t>(stage.exchange.recvs.size())});
    }
  }
  if (has_nodes(config)) {
    const NodeShape nodes = node_shape(config);
    const int num_stages = static_cast<int>(loads.front().size()) - 1;
    add_crossing(by_stage(crossing.rails, ranks, nodes, pass, num_stages), nodes, loads);
  }
  const bool kept_first = pass == AttnPass::kBackward && ranks.front().backward.back().kept;
  return kv_times(config, loads, pass, kept_first, trace);
}

}  // namespace

std::vector<RankTime> kv_times(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, AttnPass pass,
                               ClockTrace* trace) {
  Crossing crossing;
  if (has_nodes(config)) {
    crossing.rails = node_rows(ranks, node_shape(config));
    even_rails(crossing.rails, node_shape(config));
  }
  return kv_times(config, ranks, pass, crossing, trace);
}

StageCounts choose_stage_counts(const DistAttnConfig& config, const std::vector<RankPlan>& ranks,
                                const Crossing& crossing) {
  const OverlapConfig& overlap = config.overlap;
  const bool any_remote =
      std::any_of(ranks.begin(), ranks.end(), [](const RankPlan& rank) { return rank.remote_kv_rows > 0; });
  StageCounts counts{overlap.num_stages_fwd, overlap.num_stages_bwd};
  // Where nothing is remote there is nothing to stage, and the choice is to have none.
  if (!any_remote || (counts.forward > 0 && counts.backward > 0)) return counts;
  constexpr PassSeconds kNever{std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
  std::array<PassSeconds, kMaxAutoStages + 1> seconds;
  seconds.fill(kNever);
  for (int count = 1; count <= kMaxAutoStages; ++count) {
    const PassSeconds& now = seconds[static_cast<size_t>(count)] = slowest_passes(config, ranks, crossing, count);
    const PassSeconds& before = seconds[static_cast<size_t>(count) - 1];
    // Over several nodes each count takes long to try. Where one part more of what crosses does not pay, two do not.
    if (has_nodes(config) && count > 2 && now.forward >= before.forward && now.backward >= before.backward) break;
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

PredictedTime predict(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, const Crossing& crossing) {
  return predicted(slowest_of(kv_times(config, ranks, AttnPass::kForward, crossing, nullptr)),
                   slowest_of(kv_times(config, ranks, AttnPass::kBackward, crossing, nullptr)));
}

}  // namespace tangram
