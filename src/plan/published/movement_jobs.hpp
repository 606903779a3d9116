// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Published algorithms that assign jobs one by one, to compare with. A job is what one run of queries sees of one run
// of keys; both runs move whole.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/runs.hpp"

namespace tangram {

/// The cells of one run of queries and one run of keys.
struct Job {
  int q_run = 0;
  int k_run = 0;
  int64_t area = 0;
  std::vector<AttnSlice> slices;  // global rows
};

/// Input of the algorithms.
struct JobTable {
  int cp_size = 1;
  std::vector<OwnedRun> q_runs;
  std::vector<OwnedRun> k_runs;
  std::vector<Job> jobs;  // sorted by (q_run, k_run), none empty
  double q_row_cost = 1;  // bytes that move with a row
  double k_row_cost = 1;
  double mean_area = 0;  // of a rank
};
JobTable job_table(const Plan& plan);

/// Which ranks have the rows of a run.
class Holders {
 public:
  Holders(size_t num_runs, int cp_size) : cp_size_(static_cast<size_t>(cp_size)), has_(num_runs * cp_size_) {}
  bool has(int run, int rank) const { return has_[index(run, rank)] != 0; }
  void add(int run, int rank) { has_[index(run, rank)] = 1; }

 private:
  size_t index(int run, int rank) const { return static_cast<size_t>(run) * cp_size_ + static_cast<size_t>(rank); }
  size_t cp_size_;
  std::vector<char> has_;
};

// Each gives the rank of every job. Deterministic: ties go to the lower rank.

/// Greedy random grid: jobs in random order, each to a rank that already has both its rows and its columns. Other jobs
/// go to a rank drawn by load and by what it has. The best of several draws is refined by drawing a shrinking part
/// again. Cost is the largest traffic of a rank times the largest area.
std::vector<int> greedy_random_grid(const JobTable& table);

/// Binary greedy: searches the least traffic limit of a rank. Runs must be lendable to ranks, by worth per byte, so
/// that jobs can be assigned to ranks that have both runs. Areas are within 5 % of the mean if that is possible at all.
std::vector<int> binary_greedy(const JobTable& table);

/// Network flow: the same search of a limit, but a maximum flow from ranks through jobs (Dinic, 1970) decides whether
/// the jobs fit. A job whose flow is split goes to the rank with most of it.
std::vector<int> network_flow(const JobTable& table);

/// Jobs back to work of every rank.
RankWork work_of_jobs(const JobTable& table, const std::vector<int>& rank_of_job);

}  // namespace tangram
