// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/split_or_gather.hpp"

#include <utility>

#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

double whole_steps(std::span<const TileItem> items, std::span<const TileRun> runs, int64_t block_n, int64_t num_groups,
                   const GpuModel& gpu) {
  std::vector<int64_t> steps;
  steps.reserve(items.size());
  for (const TileItem& item : items) steps.push_back(item_steps(item, runs, block_n));
  return whole_items_steps(std::move(steps), num_groups, gpu);
}

}  // namespace

std::vector<SplitOrGathered> split_or_gather(std::span<const TileList> masks, const AttnShape& shape,
                                             int64_t num_groups, const GpuModel& gpu, bool can_gather) {
  std::vector<SplitOrGathered> result;
  bool any_parts = false, any_gathered = false;
  for (const TileList& mask : masks) {
    SplitOrGathered& one = result.emplace_back();
    one.parts = split_items(mask, shape, num_groups, gpu);
    if (can_gather) one.gathered = gather_runs(mask);
    any_parts = any_parts || one.parts;
    any_gathered = any_gathered || one.gathered;
  }
  if (!any_parts || !any_gathered) return result;
  double split = 0, gathered = 0;
  for (size_t i = 0; i < masks.size(); ++i) {
    const auto whole = [&](const auto& list) {
      return whole_steps(list.items, list.runs, masks[i].shape.block_n, num_groups, gpu);
    };
    split += result[i].parts ? result[i].parts->predicted_steps : whole(masks[i]);
    gathered += result[i].gathered ? whole(*result[i].gathered) : whole(masks[i]);
  }
  for (SplitOrGathered& one : result) {
    if (gathered <= split) {
      one.parts.reset();
    } else {
      one.gathered.reset();
    }
  }
  return result;
}

}  // namespace tangram::schedule
