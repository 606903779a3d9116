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
constexpr size_t kMaxSlicesForMoreStages = 20000;

// The published algorithms compete where they are quick: jobs times ranks.
constexpr size_t kMaxPublishedWork = 2048;

// Every piece goes where its keys lie.
RankWork work_by_keys(const Plan& plan) {
  RankWork work(static_cast<size_t>(plan.cp_size()));
  const std::vector<OwnedRun> k_runs = owned_runs(plan.k_dispatch);
  for_each_row_piece(plan.mask, owned_runs(plan.q_dispatch), [&](size_t, const AttnSlice& piece) {
    auto run = std::upper_bound(k_runs.begin(), k_runs.end(), piece.k_range.begin,
                                [](int64_t row, const OwnedRun& r) { return row < r.global.end; });
    for (; run != k_runs.end() && run->global.begin < piece.k_range.end; ++run) {
      const AttnSlice part = run->global.contains(piece.k_range) ? piece : cut_columns(piece, run->global);
      if (!part.q_range.empty()) work[static_cast<size_t>(run->owner)].push_back(part);
    }
  });
  return work;
}

RankWork published_work(const Plan& plan) {
  const Movement algorithm = plan.config.movement.algorithm;
  if (algorithm == Movement::kQo) return work_by_keys(plan);
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

// Tables and time of one pass.
struct BuiltPass {
  std::vector<MovementRank> ranks;
  MovementTime time;
};

BuiltPass build_pass(const Plan& plan, const RankWork& work, int head_groups, Pass pass) {
  const OverlapConfig& overlap = plan.config.overlap;
  const int wanted = pass == Pass::kForward ? overlap.num_stages_fwd : overlap.num_stages_bwd;
  const std::vector<OwnedRun> q_runs = flattened_runs(plan.q_dispatch, head_groups);
  const std::vector<OwnedRun> k_runs = flattened_runs(plan.k_dispatch, head_groups);
  size_t num_slices = 0;
  for (const std::vector<AttnSlice>& slices : work) num_slices += slices.size();
  BuiltPass best;
  for (const int count : kStageCounts) {
    if (!best.ranks.empty() && (wanted > 0 || num_slices > kMaxSlicesForMoreStages)) break;
    BuiltPass built;
    built.ranks = movement_tables(work, q_runs, k_runs, wanted > 0 ? wanted : count);
    built.time = movement_time(plan.config, built.ranks, head_groups, pass);
    if (best.ranks.empty() || built.time.total_s < best.time.total_s) best = std::move(built);
  }
  return best;
}

// Both passes.
struct Candidate {
  BuiltPass forward;
  BuiltPass backward;
  int head_groups = 1;

  double seconds() const { return forward.time.total_s + backward.time.total_s; }
};

void adopt(Plan& plan, Candidate candidate) {
  auto& [forward, backward, head_groups] = candidate;
  plan.movement = {head_groups, std::move(forward.ranks), std::move(backward.ranks)};
  plan.predicted = {forward.time.total_s, backward.time.total_s, forward.time.exposed_s + backward.time.exposed_s};
  plan.ranks.assign(static_cast<size_t>(plan.cp_size()), {});
  for (size_t r = 0; r < plan.ranks.size(); ++r) plan.ranks[r].area = plan.movement.forward[r].area / head_groups;
}

// The cheapest clusters of one pass over orders of the ranks and numbers of head groups. Many groups are many copies,
// so that fewer than there are K/V heads may be better; keys are split where heads no longer can be.
ChosenClusters cheapest_clusters(const Plan& plan, const RowWork& work, Pass pass) {
  const int wanted = plan.config.movement.head_groups;
  const int most = wanted > 0 ? wanted : plan.config.heads.num_heads_kv;
  ChosenClusters best;
  for (int groups = most; groups >= 1; --groups) {
    if (most % groups != 0 || (wanted > 0 && groups != wanted)) continue;
    if (groups < most && groups >= 2 * plan.cp_size()) continue;  // no cluster could use them
    for (const std::vector<int>& order : cluster_orders(work)) {
      ChosenClusters found = choose_clusters(plan, work, order, groups, groups == most, pass);
      if (best.clusters.empty() || found.cost < best.cost) best = std::move(found);
    }
  }
  return best;
}

Candidate cluster_candidate(const Plan& plan) {
  const RowWork work = row_work(plan);
  const ChosenClusters forward = cheapest_clusters(plan, work, Pass::kForward);
  const ChosenClusters backward = cheapest_clusters(plan, work, Pass::kBackward);
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
    return build_pass(plan, cluster_work(plan, work, chosen.clusters, head_groups), head_groups, pass);
  };
  return {build(forward, Pass::kForward), build(backward, Pass::kBackward), head_groups};
}

Candidate published_candidate(const Plan& plan, const RankWork& one_group) {
  const int head_groups = std::max(1, plan.config.movement.head_groups);
  const RankWork work = flattened(one_group, plan, head_groups);
  return {build_pass(plan, work, head_groups, Pass::kForward), build_pass(plan, work, head_groups, Pass::kBackward),
          head_groups};
}

// Ours: the clusters, and where they are quick what others found, against moving K/V alone.
void choose_movement(Plan& plan, double kv_seconds) {
  Candidate best = cluster_candidate(plan);
  const auto offer = [&](Candidate candidate) {
    if (best.forward.ranks.empty() || candidate.seconds() < best.seconds()) best = std::move(candidate);
  };
  // A job for each pair of runs is the most there can be.
  const size_t runs = owned_runs(plan.q_dispatch).size() * owned_runs(plan.k_dispatch).size();
  const size_t published_work = runs * static_cast<size_t>(plan.cp_size());
  if (published_work <= 16 * kMaxPublishedWork) offer(published_candidate(plan, work_by_keys(plan)));
  if (published_work <= kMaxPublishedWork) {
    const JobTable table = job_table(plan);
    for (const auto& algorithm : {greedy_random_grid, binary_greedy, network_flow}) {
      offer(published_candidate(plan, work_of_jobs(table, algorithm(table))));
    }
  }
  if (!best.forward.ranks.empty() && best.seconds() < kv_seconds) adopt(plan, std::move(best));
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
  if (plan.config.movement.algorithm == Movement::kAuto) {
    choose_movement(plan, kv_seconds);
  } else {
    adopt(plan, published_candidate(plan, published_work(plan)));
  }
}

}  // namespace tangram
