// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/movement/built_pass.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "plan/row_bytes.hpp"

namespace tangram {

namespace {

// Numbers of remote stages that are tried where none is configured: more hide transfers better and chop more slices.
constexpr std::array kStageCounts = {2, 4};
constexpr size_t kMaxSlicesForMoreStages = 6000;

double bytes_moved(const Plan& plan, const std::vector<MovementRank>& ranks, int head_groups, AttnPass pass) {
  const RowBytes row = row_bytes(plan.config, pass);
  int64_t bytes = 0;
  for (const MovementRank& rank : ranks) {
    bytes += rank.remote_q_rows * (row.q_in + row.q_back) + rank.remote_kv_rows * (row.kv_in + row.kv_back);
  }
  return static_cast<double>(bytes) / head_groups;
}

// Tables of work that is alike in these passes, for each of which as many stages are configured.
std::vector<BuiltPass> build_passes(const Plan& plan, const PlanRuns& runs, RankWork work, int head_groups,
                                    std::span<const AttnPass> passes) {
  const OverlapConfig& overlap = plan.config.overlap;
  const int wanted = passes[0] == AttnPass::kForward ? overlap.num_stages_fwd : overlap.num_stages_bwd;
  const std::vector<OwnedRun> q_runs = flattened_runs(runs.q, plan.q_dispatch, head_groups);
  const std::vector<OwnedRun> k_runs = flattened_runs(runs.k, plan.k_dispatch, head_groups);
  size_t num_slices = 0;
  for (const std::vector<AttnSlice>& slices : work) num_slices += slices.size();
  const size_t num_counts = wanted > 0 || num_slices > kMaxSlicesForMoreStages ? 1 : kStageCounts.size();
  std::vector<std::vector<MovementRank>> tables;
  for (size_t i = 0; i < num_counts; ++i) {
    const int count = wanted > 0 ? wanted : kStageCounts[i];
    tables.push_back(movement_tables(i + 1 < num_counts ? work : std::move(work), q_runs, k_runs, count));
  }
  std::vector<BuiltPass> built;
  for (const AttnPass pass : passes) {
    size_t best = 0;
    std::vector<RankTime> times;  // of the slowest rank
    for (const std::vector<MovementRank>& ranks : tables) {
      times.push_back(slowest_of(movement_times(plan.config, ranks, head_groups, pass)));
      if (times.back().total_s < times[best].total_s) best = times.size() - 1;
    }
    built.push_back({tables[best], times[best], bytes_moved(plan, tables[best], head_groups, pass)});
  }
  return built;
}

}  // namespace

size_t best_of(const std::vector<MovementCost>& costs) {
  constexpr double kLikeTime = 1.02;
  double fastest = costs[0].seconds;
  for (const MovementCost& cost : costs) fastest = std::min(fastest, cost.seconds);
  size_t best = costs.size();
  for (size_t i = 0; i < costs.size(); ++i) {
    if (costs[i].seconds > fastest * kLikeTime) continue;
    if (best == costs.size() || costs[i].bytes < costs[best].bytes) best = i;
  }
  return best;
}

BuiltPass build_pass(const Plan& plan, const PlanRuns& runs, RankWork work, int head_groups, AttnPass pass) {
  const std::array passes = {pass};
  return std::move(build_passes(plan, runs, std::move(work), head_groups, passes)[0]);
}

MovementCandidate build_both(const Plan& plan, const PlanRuns& runs, RankWork work, int head_groups) {
  const OverlapConfig& overlap = plan.config.overlap;
  if (overlap.num_stages_fwd != overlap.num_stages_bwd) {
    BuiltPass forward = build_pass(plan, runs, work, head_groups, AttnPass::kForward);
    return {std::move(forward), build_pass(plan, runs, std::move(work), head_groups, AttnPass::kBackward), head_groups};
  }
  const std::array passes = {AttnPass::kForward, AttnPass::kBackward};
  std::vector<BuiltPass> built = build_passes(plan, runs, std::move(work), head_groups, passes);
  return {std::move(built[0]), std::move(built[1]), head_groups};
}

void adopt(Plan& plan, MovementCandidate candidate) {
  auto& [forward, backward, head_groups] = candidate;
  plan.tables = MovementPlan{head_groups, std::move(forward.ranks), std::move(backward.ranks)};
  plan.predicted = predicted(forward.time, backward.time);
}

MovementCandidate best_of_each_pass(std::vector<MovementCandidate> candidates) {
  if (candidates.empty()) return {};
  MovementCandidate best{{}, {}, candidates[0].head_groups};
  for (BuiltPass MovementCandidate::* pass : {&MovementCandidate::forward, &MovementCandidate::backward}) {
    std::vector<MovementCost> costs;
    for (const MovementCandidate& candidate : candidates) costs.push_back((candidate.*pass).cost());
    best.*pass = std::move(candidates[best_of(costs)].*pass);
  }
  return best;
}

namespace {

constexpr double kLikeBalance = 0.01;

}  // namespace

double balance_of(const std::vector<MovementRank>& ranks) {
  int64_t most = 0, sum = 0;
  for (const MovementRank& rank : ranks) {
    most = std::max(most, rank.area);
    sum += rank.area;
  }
  return sum > 0 ? static_cast<double>(most) * static_cast<double>(ranks.size()) / static_cast<double>(sum) : 1;
}

MovementCandidate least_bytes_of_each_pass(std::vector<MovementCandidate> candidates) {
  if (candidates.empty()) return {};
  MovementCandidate least{{}, {}, candidates[0].head_groups};
  for (BuiltPass MovementCandidate::* pass : {&MovementCandidate::forward, &MovementCandidate::backward}) {
    std::vector<double> balances;
    for (const MovementCandidate& candidate : candidates) balances.push_back(balance_of((candidate.*pass).ranks));
    const double enough = *std::ranges::min_element(balances) + kLikeBalance;
    size_t best = candidates.size();
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (balances[i] > enough) continue;
      if (best == candidates.size() || (candidates[i].*pass).bytes < (candidates[best].*pass).bytes) best = i;
    }
    least.*pass = std::move(candidates[best].*pass);
  }
  return least;
}

size_t least_bytes_of(const std::vector<MovementCandidate>& candidates) {
  std::vector<std::array<double, 2>> balances;
  for (const MovementCandidate& candidate : candidates) {
    balances.push_back({balance_of(candidate.forward.ranks), balance_of(candidate.backward.ranks)});
  }
  const auto worse = [&](size_t a, size_t b) {
    return balances[a][0] > balances[b][0] + kLikeBalance || balances[a][1] > balances[b][1] + kLikeBalance;
  };
  size_t best = candidates.size();
  for (size_t i = 0; i < candidates.size(); ++i) {
    bool beaten = false;
    for (size_t other = 0; other < candidates.size(); ++other) beaten = beaten || (worse(i, other) && !worse(other, i));
    if (beaten) continue;
    if (best == candidates.size() || candidates[i].cost().bytes < candidates[best].cost().bytes) best = i;
  }
  return best == candidates.size() ? 0 : best;
}

RankWork work_by_queries(const Mask& mask, const PlanRuns& runs, int cp_size) {
  RankWork work(static_cast<size_t>(cp_size));
  for_each_row_piece(mask, runs.q, [&](size_t run, const AttnSlice& piece) {
    work[static_cast<size_t>(runs.q[run].owner)].push_back(piece);
  });
  return work;
}

RankWork work_by_keys(const Mask& mask, const PlanRuns& runs, int cp_size) {
  RankWork work(static_cast<size_t>(cp_size));
  for_each_row_piece(mask, runs.q, [&](size_t, const AttnSlice& piece) {
    for_each_key_part(piece, runs.k, [&](size_t run, const AttnSlice& part) {
      work[static_cast<size_t>(runs.k[run].owner)].push_back(part);
    });
  });
  return work;
}

}  // namespace tangram
