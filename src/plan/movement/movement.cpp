// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which queries may move: work to ranks, then tables.
#include "plan/movement/movement.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "core/require.hpp"
#include "plan/movement/clusters.hpp"
#include "plan/movement/published.hpp"
#include "plan/movement/row_bytes.hpp"

namespace tangram {

namespace {

constexpr std::array<std::pair<Movement, std::string_view>, 6> kNames = {
    {{Movement::kKv, "kv"},
     {Movement::kQo, "qo"},
     {Movement::kAuto, "auto"},
     {Movement::kGreedyRandomGrid, "greedy_random_grid"},
     {Movement::kBinaryGreedy, "binary_greedy"},
     {Movement::kNetworkFlow, "network_flow"}}};

// Numbers of remote stages that are tried where none is configured: more hide transfers better and chop more slices.
constexpr std::array kStageCounts = {2, 4};
constexpr size_t kMaxSlicesForMoreStages = 10000;

// Slices and runs of all head groups together, where the number of groups is free: a plan for every step must be quick.
constexpr size_t kMaxFlattened = 62000;

// The published algorithms compete where they are quick: jobs times ranks.
constexpr size_t kMaxPublishedWork = 8192;

// Every piece goes where its keys lie.
RankWork work_by_keys(const Plan& plan, const PlanRuns& runs) {
  RankWork work(static_cast<size_t>(plan.cp_size()));
  const std::vector<OwnedRun>& k_runs = runs.k;
  for_each_row_piece(plan.mask, runs.q, [&](size_t, const AttnSlice& piece) {
    auto run = std::upper_bound(k_runs.begin(), k_runs.end(), piece.k_range.begin,
                                [](int64_t row, const OwnedRun& r) { return row < r.global.end; });
    for (; run != k_runs.end() && run->global.begin < piece.k_range.end; ++run) {
      const AttnSlice part = run->global.contains(piece.k_range) ? piece : cut_columns(piece, run->global);
      if (!part.q_range.empty()) work[static_cast<size_t>(run->owner)].push_back(part);
    }
  });
  return work;
}

RankWork published_work(const Plan& plan, const PlanRuns& runs) {
  const Movement algorithm = plan.config.movement.algorithm;
  if (algorithm == Movement::kQo) return work_by_keys(plan, runs);
  const JobTable table = job_table(plan);
  if (algorithm == Movement::kGreedyRandomGrid) return work_of_jobs(table, greedy_random_grid(table));
  return work_of_jobs(table, algorithm == Movement::kBinaryGreedy ? binary_greedy(table) : network_flow(table));
}

// The same work for every head group.
RankWork flattened(RankWork work, const Plan& plan, int head_groups) {
  for (std::vector<AttnSlice>& slices : work) {
    const size_t count = slices.size();
    slices.reserve(count * static_cast<size_t>(head_groups));
    for (int g = 1; g < head_groups; ++g) {
      for (size_t i = 0; i < count; ++i) {
        slices.push_back(shifted(slices[i], g * plan.mask.seqlen_q(), g * plan.mask.seqlen_k()));
      }
    }
  }
  return work;
}

// What choices are compared by.
struct Cost {
  double seconds = 0;
  double bytes = 0;  // that all ranks receive
};

// Of choices that are predicted to take about as long as the fastest, the one that moves least: a difference that the
// cost model cannot vouch for is not worth bytes. The first of equal ones.
size_t best_of(const std::vector<Cost>& costs) {
  constexpr double kLikeTime = 1.02;
  double fastest = costs[0].seconds;
  for (const Cost& cost : costs) fastest = std::min(fastest, cost.seconds);
  size_t best = costs.size();
  for (size_t i = 0; i < costs.size(); ++i) {
    if (costs[i].seconds > fastest * kLikeTime) continue;
    if (best == costs.size() || costs[i].bytes < costs[best].bytes) best = i;
  }
  return best;
}

// Tables and time of one pass.
struct BuiltPass {
  std::vector<MovementRank> ranks;
  MovementTime time;
  double bytes = 0;
};

double bytes_moved(const Plan& plan, const std::vector<MovementRank>& ranks, int head_groups, Pass pass) {
  const RowBytes row = row_bytes(plan.config, pass);
  int64_t bytes = 0;
  for (const MovementRank& rank : ranks) {
    bytes += rank.remote_q_rows * (row.q_in + row.q_back) + rank.remote_kv_rows * (row.kv_in + row.kv_back);
  }
  return static_cast<double>(bytes) / head_groups;
}

BuiltPass build_pass(const Plan& plan, const PlanRuns& runs, RankWork work, int head_groups, Pass pass) {
  const OverlapConfig& overlap = plan.config.overlap;
  const int wanted = pass == Pass::kForward ? overlap.num_stages_fwd : overlap.num_stages_bwd;
  const std::vector<OwnedRun> q_runs = flattened_runs(runs.q, plan.q_dispatch, head_groups);
  const std::vector<OwnedRun> k_runs = flattened_runs(runs.k, plan.k_dispatch, head_groups);
  size_t num_slices = 0;
  for (const std::vector<AttnSlice>& slices : work) num_slices += slices.size();
  const size_t num_counts = wanted > 0 || num_slices > kMaxSlicesForMoreStages ? 1 : kStageCounts.size();
  BuiltPass best;
  for (size_t i = 0; i < num_counts; ++i) {
    const int count = wanted > 0 ? wanted : kStageCounts[i];
    BuiltPass built;
    built.ranks = movement_tables(i + 1 < num_counts ? work : std::move(work), q_runs, k_runs, count);
    built.time = movement_time(plan.config, built.ranks, head_groups, pass);
    if (best.ranks.empty() || built.time.total_s < best.time.total_s) best = std::move(built);
  }
  best.bytes = bytes_moved(plan, best.ranks, head_groups, pass);
  return best;
}

// Both passes.
struct Candidate {
  BuiltPass forward;
  BuiltPass backward;
  int head_groups = 1;

  Cost cost() const { return {forward.time.total_s + backward.time.total_s, forward.bytes + backward.bytes}; }
};

void adopt(Plan& plan, Candidate candidate) {
  auto& [forward, backward, head_groups] = candidate;
  plan.movement = {head_groups, std::move(forward.ranks), std::move(backward.ranks)};
  plan.predicted = {forward.time.total_s, backward.time.total_s, forward.time.exposed_s + backward.time.exposed_s};
  plan.ranks.assign(static_cast<size_t>(plan.cp_size()), {});
  for (size_t r = 0; r < plan.ranks.size(); ++r) plan.ranks[r].area = plan.movement.forward[r].area / head_groups;
}

// The largest number of head groups that is not too many slices and runs.
int most_head_groups(const Plan& plan, const PlanRuns& runs, const RowWork& work) {
  size_t size = runs.q.size() + runs.k.size();
  for (const std::vector<AttnSlice>& slices : work.slices) size += slices.size();
  const int heads = plan.config.heads.num_heads_kv;
  int groups = heads;
  while (groups > 1 && (heads % groups != 0 || size * static_cast<size_t>(groups) > kMaxFlattened)) {
    --groups;
  }
  return groups;
}

// The cheapest clusters of one pass over orders of the ranks and numbers of head groups. Many groups are many copies,
// so that fewer than there are K/V heads may be better; keys are split where heads no longer can be.
ChosenClusters cheapest_clusters(const Plan& plan, const PlanRuns& runs, const RowWork& work, Pass pass) {
  const int wanted = plan.config.movement.head_groups;
  const int most = wanted > 0 ? wanted : most_head_groups(plan, runs, work);
  ChosenClusters best;
  for (int groups = most; groups >= 1; --groups) {
    if (most % groups != 0 || (wanted > 0 && groups != wanted)) continue;
    if (groups < most && groups >= 2 * plan.cp_size()) continue;  // no cluster could use them
    for (const std::vector<int>& order : cluster_orders(work)) {
      ChosenClusters found = choose_clusters(plan, runs, work, order, groups, groups == most, pass);
      if (best.clusters.empty() || found.cost < best.cost) best = std::move(found);
    }
  }
  return best;
}

Candidate cluster_candidate(const Plan& plan, const PlanRuns& runs) {
  const RowWork work = row_work(plan, runs);
  const ChosenClusters forward = cheapest_clusters(plan, runs, work, Pass::kForward);
  const ChosenClusters backward = cheapest_clusters(plan, runs, work, Pass::kBackward);
  int head_groups = std::max(1, plan.config.movement.head_groups);
  bool any = false;
  for (const ChosenClusters* chosen : {&forward, &backward}) {
    for (const Cluster& cluster : chosen->clusters) {
      head_groups = std::lcm(head_groups, cluster.head_parts);
      any = any || cluster.ranks.size() > 1;
    }
  }
  if (!any) return {};  // every rank computes for its own queries
  const auto build = [&](const ChosenClusters& chosen, Pass pass) {
    return build_pass(plan, runs, cluster_work(plan, work, chosen.clusters, head_groups), head_groups, pass);
  };
  return {build(forward, Pass::kForward), build(backward, Pass::kBackward), head_groups};
}

Candidate published_candidate(const Plan& plan, const PlanRuns& runs, const RankWork& one_group) {
  const int head_groups = std::max(1, plan.config.movement.head_groups);
  const RankWork work = flattened(one_group, plan, head_groups);
  return {build_pass(plan, runs, work, head_groups, Pass::kForward),
          build_pass(plan, runs, work, head_groups, Pass::kBackward), head_groups};
}

// The best of what others found for each pass, where they are quick.
Candidate best_published(const Plan& plan, const PlanRuns& runs) {
  // A job for each pair of runs is the most there can be.
  const size_t published_work = runs.q.size() * runs.k.size() * static_cast<size_t>(plan.cp_size());
  std::vector<Candidate> found;
  if (published_work <= 4 * kMaxPublishedWork) {
    found.push_back(published_candidate(plan, runs, work_by_keys(plan, runs)));
  }
  if (published_work <= kMaxPublishedWork) {
    found.push_back(published_candidate(plan, runs, row_work(plan, runs).slices));  // K/V alone, in one pass
    const JobTable table = job_table(plan);
    for (const auto& algorithm : {greedy_random_grid, binary_greedy, network_flow}) {
      found.push_back(published_candidate(plan, runs, work_of_jobs(table, algorithm(table))));
    }
  }
  if (found.empty()) return {};
  Candidate best{{}, {}, found[0].head_groups};
  for (BuiltPass Candidate::* pass : {&Candidate::forward, &Candidate::backward}) {
    std::vector<Cost> costs;
    for (const Candidate& candidate : found) {
      costs.push_back({(candidate.*pass).time.total_s, (candidate.*pass).bytes});
    }
    best.*pass = std::move(found[best_of(costs)].*pass);
  }
  return best;
}

// Ours: moving K/V alone, clusters, or what others found.
void choose_movement(Plan& plan, const PlanRuns& runs, double kv_seconds) {
  double kv_bytes = 0;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const RowBytes row = row_bytes(plan.config, pass);
    kv_bytes += static_cast<double>(plan.rows_moved() * (row.kv_in + row.kv_back));
  }
  std::vector<Candidate> candidates(1);  // K/V alone, whose tables are there
  std::vector<Cost> costs = {{kv_seconds, kv_bytes}};
  for (Candidate candidate : {cluster_candidate(plan, runs), best_published(plan, runs)}) {
    if (candidate.forward.ranks.empty()) continue;
    costs.push_back(candidate.cost());
    candidates.push_back(std::move(candidate));
  }
  const size_t best = best_of(costs);
  if (best > 0) adopt(plan, std::move(candidates[best]));
}

}  // namespace

std::string_view to_string(Movement movement) {
  for (const auto& [value, name] : kNames) {
    if (value == movement) return name;
  }
  return "unknown";
}

Movement parse_movement(std::string_view name) {
  std::string names;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  require(false, "parse_movement: name must be one of {} (got '{}')", names, name);
  return {};
}

void build_movement(Plan& plan, double kv_seconds) {
  const PlanRuns runs = runs_of(plan);
  if (plan.config.movement.algorithm == Movement::kAuto) {
    choose_movement(plan, runs, kv_seconds);
  } else {
    adopt(plan, published_candidate(plan, runs, published_work(plan, runs)));
  }
}

}  // namespace tangram
