// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/timeline.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "plan/cost.hpp"

namespace tangram::cli {

namespace {

// Stages in the order in which a pass runs them; NOTE [kept stage] in plan.hpp.
std::vector<size_t> execution_order(const std::vector<Stage>& stages) {
  std::vector<size_t> order;
  const bool kept_first = stages.size() > 1 && stages.back().kept;
  if (kept_first) order.push_back(stages.size() - 1);
  if (!kept_first) order.push_back(0);
  for (size_t s = 1; s + (kept_first ? 1 : 0) < stages.size(); ++s) order.push_back(s);
  if (kept_first) order.push_back(0);
  return order;
}

// One pass of one rank from `origin_s` on, by the rules of pass_time: the cast of a stage is posted before its
// predecessor computes, and a link carries one stage at a time. Returns when all is done.
double append_pass(const Plan& plan, int rank, bool backward, double origin_s, std::vector<TimelineEvent>& events) {
  const DistAttnConfig& config = plan.config;
  const RankPlan& rank_plan = plan.ranks[static_cast<size_t>(rank)];
  const std::vector<Stage>& stages = backward ? rank_plan.backward : rank_plan.forward;
  const int64_t grad_bytes = kv_grad_row_bytes(config.heads, config.reduce_dtype);
  double computed = origin_s;
  double posted = origin_s;
  double arrived = origin_s;
  double reduced = origin_s;
  for (const size_t s : execution_order(stages)) {
    const Stage& stage = stages[s];
    const int64_t rows = stage.exchange.rows_received();
    const int64_t num_copies = static_cast<int64_t>(stage.exchange.recvs.size());
    const auto event = [&](Lane lane, double begin, double end) {
      if (end > begin) events.push_back({rank, lane, backward, static_cast<int>(s), begin, end});
    };
    double start = computed;
    if (s != 0 && rows > 0 && !stage.kept) {
      const double begin = std::max(arrived, posted);
      arrived = begin + transfer_seconds(config.cost, rows, kv_row_bytes(config.heads), num_copies);
      event(Lane::kTransfer, begin, arrived);
      start = std::max(computed, arrived);
    }
    const auto pass = backward ? Pass::kBackward : Pass::kForward;
    computed = start + compute_seconds(config, stage.area, pass) + (s == 0 ? 0 : config.cost.stage_overhead_s);
    posted = start;
    event(Lane::kCompute, start, computed);
    if (backward && rows > 0) {
      const double begin = std::max(reduced, computed);
      reduced = begin + transfer_seconds(config.cost, rows, grad_bytes, num_copies);
      event(Lane::kReturn, begin, reduced);
    }
  }
  return std::max(computed, reduced);
}

}  // namespace

std::vector<TimelineEvent> predicted_timeline(const Plan& plan) {
  std::vector<TimelineEvent> events;
  if (!plan.grid.empty()) return events;
  double forward_end = 0;
  for (int r = 0; r < plan.cp_size(); ++r) forward_end = std::max(forward_end, append_pass(plan, r, false, 0, events));
  for (int r = 0; r < plan.cp_size(); ++r) append_pass(plan, r, true, forward_end, events);
  return events;
}

std::vector<int> slowest_ranks(const std::vector<TimelineEvent>& events, size_t count) {
  size_t num_ranks = 0;
  std::array<double, 2> begin_s{1e300, 1e300};  // of the passes
  for (const TimelineEvent& event : events) {
    num_ranks = std::max(num_ranks, static_cast<size_t>(event.rank) + 1);
    begin_s[event.backward] = std::min(begin_s[event.backward], event.begin_s);
  }
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  if (num_ranks <= count) return ranks;
  std::vector<std::array<double, 2>> seconds(num_ranks);
  for (const TimelineEvent& event : events) {
    double& longest = seconds[static_cast<size_t>(event.rank)][event.backward];
    longest = std::max(longest, event.end_s - begin_s[event.backward]);
  }
  const auto step_s = [&](int rank) {
    const std::array<double, 2>& passes = seconds[static_cast<size_t>(rank)];
    return passes[0] + passes[1];
  };
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return step_s(a) > step_s(b); });
  ranks.resize(count);
  return ranks;
}

}  // namespace tangram::cli
