// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Jobs of a plan, and work made of them.
#include "plan/published/movement_jobs.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/row_bytes.hpp"

namespace tangram {

JobTable job_table(const Plan& plan) {
  JobTable table;
  table.cp_size = plan.cp_size();
  table.q_runs = owned_runs(plan.q_dispatch);
  table.k_runs = owned_runs(plan.k_dispatch);
  const RowBytes bytes = row_bytes(plan.config, AttnPass::kForward);
  table.q_row_cost = static_cast<double>(bytes.q_in + bytes.q_back);
  table.k_row_cost = static_cast<double>(bytes.kv_in);
  table.mean_area = static_cast<double>(plan.mask.area()) / plan.cp_size();
  std::map<std::pair<int, int>, Job> jobs;
  for_each_row_piece(plan.mask, table.q_runs, [&](size_t q_run, const AttnSlice& piece) {
    for_each_key_part(piece, table.k_runs, [&](size_t k_run, const AttnSlice& part) {
      Job& job = jobs[{static_cast<int>(q_run), static_cast<int>(k_run)}];
      job.q_run = static_cast<int>(q_run);
      job.k_run = static_cast<int>(k_run);
      job.area += area(part);
      job.slices.push_back(part);
    });
  });
  for (auto& [key, job] : jobs) table.jobs.push_back(std::move(job));
  return table;
}

RankWork work_of_jobs(const JobTable& table, const std::vector<int>& rank_of_job) {
  RankWork work(static_cast<size_t>(table.cp_size));
  for (size_t n = 0; n < table.jobs.size(); ++n) {
    std::vector<AttnSlice>& slices = work[static_cast<size_t>(rank_of_job[n])];
    slices.insert(slices.end(), table.jobs[n].slices.begin(), table.jobs[n].slices.end());
  }
  return work;
}

}  // namespace tangram
