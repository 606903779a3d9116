// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "plan/published/movement_jobs.hpp"

namespace tangram {

namespace {

// Largest traffic of a rank times largest area.
double grid_cost(const JobTable& table, const std::vector<int>& rank_of_job) {
  const size_t cp = static_cast<size_t>(table.cp_size);
  std::vector<double> traffic(cp), areas(cp);
  Holders rows(table.q_runs.size(), table.cp_size), columns(table.k_runs.size(), table.cp_size);
  const auto lend = [&](Holders& holders, int run, const OwnedRun& owned, int rank, double cost) {
    if (owned.owner == rank || holders.has(run, rank)) return;
    holders.add(run, rank);
    traffic[static_cast<size_t>(rank)] += static_cast<double>(owned.global.size()) * cost;
    traffic[static_cast<size_t>(owned.owner)] += static_cast<double>(owned.global.size()) * cost;
  };
  for (size_t n = 0; n < table.jobs.size(); ++n) {
    const Job& job = table.jobs[n];
    areas[static_cast<size_t>(rank_of_job[n])] += static_cast<double>(job.area);
    lend(rows, job.q_run, table.q_runs[static_cast<size_t>(job.q_run)], rank_of_job[n], table.q_row_cost);
    lend(columns, job.k_run, table.k_runs[static_cast<size_t>(job.k_run)], rank_of_job[n], table.k_row_cost);
  }
  return (1 + *std::max_element(traffic.begin(), traffic.end())) * *std::max_element(areas.begin(), areas.end());
}

// Assigns the jobs of `open` in their order; all others stay where they are.
std::vector<int> assign_at_random(const JobTable& table, std::vector<int> rank_of_job, const std::vector<size_t>& open,
                                  std::mt19937& rng) {
  const size_t cp = static_cast<size_t>(table.cp_size);
  Holders rows(table.q_runs.size(), table.cp_size), columns(table.k_runs.size(), table.cp_size);
  std::vector<double> load(cp, 1);
  for (const size_t n : open) rank_of_job[n] = -1;
  for (size_t n = 0; n < table.jobs.size(); ++n) {
    if (rank_of_job[n] < 0) continue;
    rows.add(table.jobs[n].q_run, rank_of_job[n]);
    columns.add(table.jobs[n].k_run, rank_of_job[n]);
    load[static_cast<size_t>(rank_of_job[n])] += static_cast<double>(table.jobs[n].area);
  }
  std::vector<double> weights(cp);
  for (const size_t n : open) {
    const Job& job = table.jobs[n];
    bool any = false;
    double heaviest = 0;
    for (int r = 0; r < table.cp_size; ++r) {
      const bool free = rows.has(job.q_run, r) && columns.has(job.k_run, r);
      if (free && !any) heaviest = 0;
      any = any || free;
      if (free || !any) heaviest = std::max(heaviest, load[static_cast<size_t>(r)]);
    }
    double sum = 0;
    for (int r = 0; r < table.cp_size; ++r) {
      const bool row = rows.has(job.q_run, r), column = columns.has(job.k_run, r);
      const double room = 1.05 * heaviest - load[static_cast<size_t>(r)];
      double& weight = weights[static_cast<size_t>(r)];
      weight = any && !(row && column) ? 0 : std::max(room, 0.0) / heaviest;
      if (!any)
        weight +=
            ((row ? table.q_row_cost : 0) + (column ? table.k_row_cost : 0)) / (table.q_row_cost + table.k_row_cost);
      sum += weight;
    }
    // Drawn by hand: distributions of the standard library differ between implementations.
    double draw = sum * (static_cast<double>(rng()) / 4294967296.0);
    int chosen = table.cp_size - 1;
    for (int r = 0; r < table.cp_size; ++r) {
      draw -= weights[static_cast<size_t>(r)];
      if (draw < 0) {
        chosen = r;
        break;
      }
    }
    rank_of_job[n] = chosen;
    rows.add(job.q_run, chosen);
    columns.add(job.k_run, chosen);
    load[static_cast<size_t>(chosen)] += static_cast<double>(job.area);
  }
  return rank_of_job;
}

void shuffle(std::vector<size_t>& list, std::mt19937& rng) {
  for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[rng() % i]);
}

}  // namespace

std::vector<int> greedy_random_grid(const JobTable& table) {
  std::mt19937 rng(0);
  std::vector<int> start(table.jobs.size(), 0);
  std::vector<size_t> open;
  for (size_t n = 0; n < table.jobs.size(); ++n) {
    const Job& job = table.jobs[n];
    const int owner = table.q_runs[static_cast<size_t>(job.q_run)].owner;
    if (owner == table.k_runs[static_cast<size_t>(job.k_run)].owner) {
      start[n] = owner;
    } else {
      open.push_back(n);
    }
  }
  if (open.empty()) return start;
  const size_t work = table.jobs.size() * static_cast<size_t>(table.cp_size);
  const int num_draws = static_cast<int>(std::clamp<size_t>(1000000 / work, 4, 100));
  std::vector<int> best;
  double best_cost = std::numeric_limits<double>::infinity();
  const auto offer = [&](std::vector<int> assigned) {
    const double cost = grid_cost(table, assigned);
    if (cost >= best_cost) return;
    best_cost = cost;
    best = std::move(assigned);
  };
  for (int draw = 0; draw < num_draws; ++draw) {
    shuffle(open, rng);
    offer(assign_at_random(table, start, open, rng));
  }
  for (int draw = 0; draw < num_draws; ++draw) {
    shuffle(open, rng);
    const size_t part = open.size() * static_cast<size_t>(num_draws - draw) / static_cast<size_t>(num_draws);
    offer(assign_at_random(table, best, {open.begin(), open.begin() + static_cast<int64_t>(part)}, rng));
  }
  return best;
}

}  // namespace tangram
