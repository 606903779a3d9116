// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which queries may move: work to ranks, then tables.
#include "plan/movement/movement.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/names.hpp"
#include "plan/movement/built_pass.hpp"
#include "plan/movement/clusters.hpp"
#include "plan/published/movement_jobs.hpp"
#include "plan/row_bytes.hpp"

namespace tangram {

namespace {

constexpr Names<Movement, 7> kNames = {{{Movement::kKv, "kv"},
                                        {Movement::kQo, "qo"},
                                        {Movement::kAuto, "auto"},
                                        {Movement::kGreedyRandomGrid, "greedy_random_grid"},
                                        {Movement::kBinaryGreedy, "binary_greedy"},
                                        {Movement::kNetworkFlow, "network_flow"},
                                        {Movement::kLeastBytes, "least_bytes"}}};

// Slices and runs of all head groups together, where the number of groups is free: a plan for every step must be quick.
constexpr size_t kMaxFlattened = 62000;

// The published algorithms compete where they are quick: jobs times ranks. With kLeastBytes time is no object.
constexpr size_t kMaxPublishedWork = 8192;
constexpr size_t kMaxWorkForLeastBytes = 16 * kMaxPublishedWork;

// With kLeastBytes clusters are chosen as if links were so much slower that bytes decide.
constexpr double kSlowerLinks = 64;

RankWork published_work(const Plan& plan, const PlanRuns& runs) {
  const Movement algorithm = plan.config.movement.algorithm;
  if (algorithm == Movement::kQo) return work_by_keys(plan.mask, runs, plan.cp_size());
  const JobTable table = job_table(plan);
  if (algorithm == Movement::kGreedyRandomGrid) return work_of_jobs(table, greedy_random_grid(table));
  return work_of_jobs(table, algorithm == Movement::kBinaryGreedy ? binary_greedy(table) : network_flow(table));
}

// Work that is the same for every head group.
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
// Where nearly as cheap (2 % of the time of every rank), they are of `liked` groups, so that both passes share tables.
ChosenClusters cheapest_clusters(const Plan& plan, const PlanRuns& runs, const RowWork& work, AttnPass pass,
                                 int liked) {
  constexpr double kNearly = 1.37;  // 1.02^16, see Search::rank_cost
  const int wanted = plan.config.movement.head_groups;
  const int most = wanted > 0 ? wanted : most_head_groups(plan, runs, work);
  ChosenClusters best, of_liked;
  for (int groups = most; groups >= 1; --groups) {
    if (most % groups != 0 || (wanted > 0 && groups != wanted)) continue;
    if (groups < most && groups >= 2 * plan.cp_size()) continue;  // no cluster could use them
    for (const std::vector<int>& order : cluster_orders(work)) {
      ChosenClusters found = choose_clusters(plan, runs, work, order, groups, groups == most, pass);
      if (groups == liked && (of_liked.clusters.empty() || found.cost < of_liked.cost)) of_liked = found;
      if (best.clusters.empty() || found.cost < best.cost) best = std::move(found);
    }
  }
  return of_liked.clusters.empty() || of_liked.cost > kNearly * best.cost ? best : of_liked;
}

MovementCandidate cluster_candidate(const Plan& plan, const PlanRuns& runs, double slower_links = 1) {
  const RowWork work = row_work(plan, runs);
  Plan weighed = plan;
  weighed.config.cost.link_bytes_per_s /= slower_links;
  const ChosenClusters forward = cheapest_clusters(weighed, runs, work, AttnPass::kForward, 0);
  const ChosenClusters backward = cheapest_clusters(weighed, runs, work, AttnPass::kBackward, forward.head_groups);
  int head_groups = std::max(1, plan.config.movement.head_groups);
  bool any = false;
  for (const ChosenClusters* chosen : {&forward, &backward}) {
    for (const Cluster& cluster : chosen->clusters) {
      head_groups = std::lcm(head_groups, cluster.head_parts);
      any = any || cluster.ranks.size() > 1;
    }
  }
  if (!any) return {};  // every rank computes for its own queries
  const auto work_of = [&](const ChosenClusters& chosen) {
    return cluster_work(plan, work, chosen.clusters, head_groups);
  };
  if (forward.clusters == backward.clusters) return build_both(plan, runs, work_of(forward), head_groups);
  return {build_pass(plan, runs, work_of(forward), head_groups, AttnPass::kForward),
          build_pass(plan, runs, work_of(backward), head_groups, AttnPass::kBackward), head_groups};
}

MovementCandidate published_candidate(const Plan& plan, const PlanRuns& runs, const RankWork& one_group) {
  const int head_groups = std::max(1, plan.config.movement.head_groups);
  return build_both(plan, runs, flattened(one_group, plan, head_groups), head_groups);
}

// What others found, where that is less than `most_work`.
std::vector<MovementCandidate> published_candidates(const Plan& plan, const PlanRuns& runs, size_t most_work) {
  // A job for each pair of runs is the most there can be.
  const size_t published_work = runs.q.size() * runs.k.size() * static_cast<size_t>(plan.cp_size());
  std::vector<MovementCandidate> found;
  if (published_work <= 4 * most_work) {
    found.push_back(published_candidate(plan, runs, work_by_keys(plan.mask, runs, plan.cp_size())));
  }
  if (published_work <= most_work) {
    found.push_back(
        published_candidate(plan, runs, work_by_queries(plan.mask, runs, plan.cp_size())));  // K/V alone, in one pass
    const JobTable table = job_table(plan);
    for (const auto& algorithm : {greedy_random_grid, binary_greedy, network_flow}) {
      found.push_back(published_candidate(plan, runs, work_of_jobs(table, algorithm(table))));
    }
  }
  return found;
}

// For each pass the candidate with the least bytes among the best balanced, from clusters and the other searches.
void choose_least_bytes(Plan& plan, const PlanRuns& runs) {
  std::vector<MovementCandidate> finalists;
  finalists.push_back(least_bytes_of_each_pass(published_candidates(plan, runs, kMaxWorkForLeastBytes)));
  for (const double slower : {1.0, kSlowerLinks}) finalists.push_back(cluster_candidate(plan, runs, slower));
  std::erase_if(finalists, [](const MovementCandidate& candidate) { return candidate.empty(); });
  if (finalists.empty()) return;  // K/V alone, whose tables are there
  const size_t best = least_bytes_of(finalists);
  adopt(plan, std::move(finalists[best]));
}

// Ours: moving K/V alone, clusters, or what others found.
void choose_movement(Plan& plan, const PlanRuns& runs, double kv_seconds) {
  double kv_bytes = 0;
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    const RowBytes row = row_bytes(plan.config, pass);
    kv_bytes += static_cast<double>(plan.rows_moved() * (row.kv_in + row.kv_back));
  }
  std::vector<MovementCandidate> candidates(1);  // K/V alone, whose tables are there
  std::vector<MovementCost> costs = {{kv_seconds, kv_bytes}};
  for (MovementCandidate candidate :
       {cluster_candidate(plan, runs), best_of_each_pass(published_candidates(plan, runs, kMaxPublishedWork))}) {
    if (candidate.empty()) continue;
    costs.push_back(candidate.cost());
    candidates.push_back(std::move(candidate));
  }
  const size_t best = best_of(costs);
  if (best > 0) adopt(plan, std::move(candidates[best]));
}

}  // namespace

std::string_view to_string(Movement movement) { return name_in(kNames, movement); }

Movement parse_movement(std::string_view name) { return value_in(kNames, name, "parse_movement"); }

void build_movement(Plan& plan, double kv_seconds) {
  const PlanRuns runs = runs_of(plan);
  if (plan.config.movement.algorithm == Movement::kAuto) {
    choose_movement(plan, runs, kv_seconds);
  } else if (plan.config.movement.algorithm == Movement::kLeastBytes) {
    choose_least_bytes(plan, runs);
  } else {
    adopt(plan, published_candidate(plan, runs, published_work(plan, runs)));
  }
}

}  // namespace tangram
