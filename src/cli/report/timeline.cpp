// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/timeline.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "plan/plan_times.hpp"

namespace tangram::cli {

namespace {

// All ranks in order, or where there are more than `count` the ones with the longest steps, slowest first.
std::vector<int> slowest_ranks(const std::vector<double>& step_s, size_t count) {
  std::vector<int> ranks(step_s.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (ranks.size() <= count) return ranks;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return step_s[static_cast<size_t>(a)] > step_s[static_cast<size_t>(b)]; });
  ranks.resize(count);
  return ranks;
}

Lane lane_of(const ClockEvent& event) {
  switch (event.kind) {
    case ClockEvent::Kind::kAttend: return Lane::kCompute;
    case ClockEvent::Kind::kMemory: return Lane::kMemory;
    case ClockEvent::Kind::kCast: break;
  }
  return event.results ? Lane::kReturn : Lane::kTransfer;
}

}  // namespace

std::vector<TimelineEvent> predicted_timeline(const Plan& plan, size_t most_ranks) {
  std::vector<double> step_s(static_cast<size_t>(plan.cp_size()));
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    const std::vector<RankTime> times = plan_times(plan, pass);
    for (size_t r = 0; r < step_s.size(); ++r) step_s[r] += times[r].total_s;
  }
  std::vector<bool> shown(step_s.size());
  for (const int rank : slowest_ranks(step_s, most_ranks)) shown[static_cast<size_t>(rank)] = true;
  std::vector<TimelineEvent> events;
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    const double begin_s = pass == AttnPass::kForward ? 0 : plan.predicted.forward_s;
    ClockTrace trace{shown, {}};
    plan_times(plan, pass, &trace);
    for (const ClockEvent& event : trace.events) {
      events.push_back({event.rank, lane_of(event), pass == AttnPass::kBackward, event.step, begin_s + event.begin_s,
                        begin_s + event.end_s});
    }
  }
  return events;
}

std::vector<int> slowest_ranks(const std::vector<TimelineEvent>& events, size_t count) {
  size_t num_ranks = 0;
  std::array<double, 2> begin_s{1e300, 1e300};  // of the passes
  for (const TimelineEvent& event : events) {
    num_ranks = std::max(num_ranks, static_cast<size_t>(event.rank) + 1);
    begin_s[event.backward] = std::min(begin_s[event.backward], event.begin_s);
  }
  std::vector<std::array<double, 2>> passes(num_ranks);
  for (const TimelineEvent& event : events) {
    double& longest = passes[static_cast<size_t>(event.rank)][event.backward];
    longest = std::max(longest, event.end_s - begin_s[event.backward]);
  }
  std::vector<double> step_s;
  for (const auto& [forward_s, backward_s] : passes) step_s.push_back(forward_s + backward_s);
  return slowest_ranks(step_s, count);
}

}  // namespace tangram::cli
