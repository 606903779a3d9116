// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Algorithms that lend runs to ranks under a limit of traffic, and assign the jobs to ranks that have both their runs.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "plan/published/max_flow.hpp"
#include "plan/published/movement_jobs.hpp"

namespace tangram {

namespace {

// A run that might be lent to a rank.
struct Loan {
  bool of_queries = false;
  int run = 0;
  int owner = 0;
  int rank = 0;
  double cost = 0;
  double worth_per_cost = 0;
};

// Every possible loan, the best first. A run is worth what its jobs that stay at home weigh in the rank, and its share
// of the others.
std::vector<Loan> all_loans(const JobTable& table) {
  std::vector<Loan> loans;
  for (const bool of_queries : {true, false}) {
    const std::vector<OwnedRun>& runs = of_queries ? table.q_runs : table.k_runs;
    std::vector<std::vector<double>> at_home(runs.size());
    std::vector<double> open(runs.size());
    for (const Job& job : table.jobs) {
      const size_t run = static_cast<size_t>(of_queries ? job.q_run : job.k_run);
      const int q_owner = table.q_runs[static_cast<size_t>(job.q_run)].owner;
      if (q_owner == table.k_runs[static_cast<size_t>(job.k_run)].owner) {
        at_home[run].resize(static_cast<size_t>(table.cp_size));
        at_home[run][static_cast<size_t>(q_owner)] += static_cast<double>(job.area);
      } else {
        open[run] += static_cast<double>(job.area);
      }
    }
    for (size_t run = 0; run < runs.size(); ++run) {
      if (open[run] == 0) continue;
      const double cost =
          static_cast<double>(runs[run].global.size()) * (of_queries ? table.q_row_cost : table.k_row_cost);
      for (int rank = 0; rank < table.cp_size; ++rank) {
        if (rank == runs[run].owner) continue;
        const double home = at_home[run].empty() ? 0 : at_home[run][static_cast<size_t>(rank)];
        const double worth = 0.95 * (home + open[run] / table.cp_size) + 0.05 * table.mean_area / table.cp_size;
        loans.push_back({of_queries, static_cast<int>(run), runs[run].owner, rank, cost, worth / cost});
      }
    }
  }
  std::stable_sort(loans.begin(), loans.end(),
                   [](const Loan& a, const Loan& b) { return a.worth_per_cost > b.worth_per_cost; });
  return loans;
}

struct Lent {
  Holders rows;
  Holders columns;
};

Lent lend_under(const JobTable& table, const std::vector<Loan>& loans, double limit) {
  Lent lent{{table.q_runs.size(), table.cp_size}, {table.k_runs.size(), table.cp_size}};
  for (size_t i = 0; i < table.q_runs.size(); ++i) lent.rows.add(static_cast<int>(i), table.q_runs[i].owner);
  for (size_t j = 0; j < table.k_runs.size(); ++j) lent.columns.add(static_cast<int>(j), table.k_runs[j].owner);
  std::vector<double> traffic(static_cast<size_t>(table.cp_size));
  for (const Loan& loan : loans) {
    double& from = traffic[static_cast<size_t>(loan.owner)];
    double& to = traffic[static_cast<size_t>(loan.rank)];
    if (from + loan.cost > limit || to + loan.cost > limit) continue;
    from += loan.cost;
    to += loan.cost;
    (loan.of_queries ? lent.rows : lent.columns).add(loan.run, loan.rank);
  }
  return lent;
}

// The ranks that may do a job.
std::vector<int> allowed_ranks(const JobTable& table, const Lent& lent, const Job& job) {
  std::vector<int> ranks;
  for (int r = 0; r < table.cp_size; ++r) {
    if (lent.rows.has(job.q_run, r) && lent.columns.has(job.k_run, r)) ranks.push_back(r);
  }
  return ranks;
}

struct Assignment {
  bool complete = false;  // every job has a rank
  double largest_area = std::numeric_limits<double>::infinity();
  std::vector<int> rank_of_job;
};

double largest_area(const JobTable& table, const std::vector<int>& rank_of_job) {
  std::vector<double> areas(static_cast<size_t>(table.cp_size));
  for (size_t n = 0; n < table.jobs.size(); ++n) {
    areas[static_cast<size_t>(rank_of_job[n])] += static_cast<double>(table.jobs[n].area);
  }
  return *std::max_element(areas.begin(), areas.end());
}

// Fewest choices first, then largest first, each to the lightest rank that may have it; a job at home stays there.
Assignment assign_greedily(const JobTable& table, const Lent& lent) {
  Assignment assigned;
  std::vector<std::vector<int>> allowed;
  for (const Job& job : table.jobs) {
    allowed.push_back(allowed_ranks(table, lent, job));
    if (allowed.back().empty()) return assigned;
  }
  std::vector<size_t> order(table.jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(allowed[a].size(), -table.jobs[a].area) < std::pair(allowed[b].size(), -table.jobs[b].area);
  });
  std::vector<double> load(static_cast<size_t>(table.cp_size));
  const auto lightest = [&](const std::vector<int>& ranks) {
    return *std::min_element(ranks.begin(), ranks.end(),
                             [&](int a, int b) { return load[static_cast<size_t>(a)] < load[static_cast<size_t>(b)]; });
  };
  assigned.rank_of_job.resize(table.jobs.size());
  for (const size_t n : order) {
    const Job& job = table.jobs[n];
    const int home = table.q_runs[static_cast<size_t>(job.q_run)].owner;
    const bool at_home = home == table.k_runs[static_cast<size_t>(job.k_run)].owner;
    const bool owner_free = lent.columns.has(job.k_run, home) && load[static_cast<size_t>(home)] < table.mean_area;
    const int rank = at_home || owner_free ? home : lightest(allowed[n]);
    assigned.rank_of_job[n] = rank;
    load[static_cast<size_t>(rank)] += static_cast<double>(job.area);
  }
  for (int turn = 0; turn < 5; ++turn) {
    for (const size_t n : order) {
      double& from = load[static_cast<size_t>(assigned.rank_of_job[n])];
      if (from <= table.mean_area) continue;
      const int rank = lightest(allowed[n]);
      double& to = load[static_cast<size_t>(rank)];
      if (to + static_cast<double>(table.jobs[n].area) >= from) continue;
      from -= static_cast<double>(table.jobs[n].area);
      to += static_cast<double>(table.jobs[n].area);
      assigned.rank_of_job[n] = rank;
    }
  }
  assigned.complete = true;
  assigned.largest_area = largest_area(table, assigned.rank_of_job);
  return assigned;
}

Assignment assign_by_flow(const JobTable& table, const Lent& lent) {
  Assignment assigned;
  const size_t num_jobs = table.jobs.size(), cp = static_cast<size_t>(table.cp_size);
  MaxFlow flow(num_jobs + cp + 2);
  const size_t source = num_jobs + cp, sink = source + 1;
  const int64_t room = static_cast<int64_t>(1.02 * table.mean_area) + 1;
  for (size_t r = 0; r < cp; ++r) flow.add_edge(source, num_jobs + r, room);
  std::vector<std::vector<std::pair<int, size_t>>> shares(num_jobs);
  int64_t total = 0;
  for (size_t n = 0; n < num_jobs; ++n) {
    const std::vector<int> allowed = allowed_ranks(table, lent, table.jobs[n]);
    if (allowed.empty()) return assigned;
    for (const int rank : allowed) {
      shares[n].emplace_back(rank, flow.add_edge(num_jobs + static_cast<size_t>(rank), n, table.jobs[n].area));
    }
    flow.add_edge(n, sink, table.jobs[n].area);
    total += table.jobs[n].area;
  }
  const int64_t reached = flow.maximum(source, sink);
  for (size_t n = 0; n < num_jobs; ++n) {
    int64_t most = -1;
    int rank = 0;
    for (const auto& [candidate, edge] : shares[n]) {
      if (flow.flow_of(edge) > most) {
        most = flow.flow_of(edge);
        rank = candidate;
      }
    }
    assigned.rank_of_job.push_back(rank);
  }
  assigned.complete = true;
  // What the flow cannot place would be too much for some rank.
  assigned.largest_area = reached == total ? table.mean_area : largest_area(table, assigned.rank_of_job);
  return assigned;
}

// The least limit of traffic at which `assign` balances within 5 % of the mean, or as well as without a limit.
template <class Assign>
std::vector<int> search_limit(const JobTable& table, const Assign& assign) {
  const std::vector<Loan> loans = all_loans(table);
  double high = 1;
  for (const Loan& loan : loans) high += loan.cost;
  Assignment best = assign(lend_under(table, loans, high));
  const double wanted = std::max(1.05 * table.mean_area, 1.001 * best.largest_area);
  double low = 0;
  for (int turn = 0; turn < 24; ++turn) {
    const double middle = (low + high) / 2;
    Assignment assigned = assign(lend_under(table, loans, middle));
    if (assigned.complete && assigned.largest_area <= wanted) {
      high = middle;
      best = std::move(assigned);
    } else {
      low = middle;
    }
  }
  return best.rank_of_job;
}

}  // namespace

std::vector<int> binary_greedy(const JobTable& table) {
  return search_limit(table, [&](const Lent& lent) { return assign_greedily(table, lent); });
}

std::vector<int> network_flow(const JobTable& table) {
  return search_limit(table, [&](const Lent& lent) { return assign_by_flow(table, lent); });
}

}  // namespace tangram
