// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/split_or_gather.hpp"

#include <vector>

namespace tangram::schedule {
namespace {

double gathered_steps(const GatheredList& list, int64_t block_n, int64_t num_groups, const GpuModel& gpu) {
  std::vector<int64_t> steps;
  steps.reserve(list.items.size());
  for (const TileItem& item : list.items) {
    int64_t& sum = steps.emplace_back(0);
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
      const TileRun& run = list.runs[static_cast<size_t>(r)];
      sum += (run.k_end - run.k_begin + block_n - 1) / block_n;
    }
  }
  return whole_items_steps(std::move(steps), num_groups, gpu);
}

}  // namespace

SplitOrGathered split_or_gather(const TileList& tiles, const AttnShape& shape, int64_t num_groups, const GpuModel& gpu,
                                bool can_gather) {
  SplitOrGathered result;
  result.parts = split_items(tiles, shape, num_groups, gpu);
  if (!can_gather) return result;
  result.gathered = gather_runs(tiles);
  if (!result.parts || !result.gathered) return result;
  if (gathered_steps(*result.gathered, tiles.shape.block_n, num_groups, gpu) <= result.parts->predicted_steps) {
    result.parts.reset();
  } else {
    result.gathered.reset();
  }
  return result;
}

}  // namespace tangram::schedule
