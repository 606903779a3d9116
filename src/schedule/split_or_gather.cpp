// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/split_or_gather.hpp"

#include <utility>

#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

double whole_steps(std::span<const MaskTile> work_tiles, std::span<const TileRange> runs, int64_t block_n,
                   int64_t num_groups, const GpuModel& gpu) {
  std::vector<int64_t> steps;
  steps.reserve(work_tiles.size());
  for (const MaskTile& work_tile : work_tiles) steps.push_back(work_tile_steps(work_tile, runs, block_n));
  return whole_work_tiles_steps(std::move(steps), num_groups, gpu);
}

}  // namespace

std::vector<SplitOrGathered> split_or_gather(std::span<const TileList> masks, const AttnShape& shape,
                                             int64_t num_groups, const GpuModel& gpu, const GatherableTiles& gatherable,
                                             bool may_split) {
  std::vector<SplitOrGathered> result;
  bool any_parts = false, any_gathered = false;
  for (size_t i = 0; i < masks.size(); ++i) {
    SplitOrGathered& one = result.emplace_back();
    one.tiles = &masks[i];
    if (may_split) one.parts = split_work_tiles(masks[i], shape, num_groups, gpu);
    if (!gatherable.masks.empty()) one.gathered = gather_runs(gatherable.masks[i]);
    if (gatherable.alone && !one.gathered) one.gathered = gather_none(gatherable.masks[i]);
    any_parts = any_parts || one.parts;
    any_gathered = any_gathered || one.gathered;
  }
  // Gathering the runs of the same tiles takes nothing but steps away.
  const bool same_tiles =
      gatherable.masks.data() == masks.data() && (gatherable.num_groups == 0 || gatherable.num_groups == num_groups);
  if (!any_gathered || (!any_parts && same_tiles)) return result;
  double split = 0, gathered = 0;
  for (size_t i = 0; i < masks.size(); ++i) {
    const auto whole = [&](const auto& list, int64_t groups) {
      return whole_steps(list.work_tiles, list.runs, masks[i].shape.block_n, groups, gpu);
    };
    const int64_t groups = gatherable.num_groups > 0 ? gatherable.num_groups : num_groups;
    split += result[i].parts ? result[i].parts->predicted_steps : whole(masks[i], num_groups);
    gathered += gatherable.step *
                (result[i].gathered ? whole(*result[i].gathered, groups) : whole(gatherable.masks[i], groups));
  }
  for (size_t i = 0; i < masks.size(); ++i) {
    if (gathered <= split) {
      result[i].parts.reset();
      result[i].tiles = &gatherable.masks[i];
    } else {
      result[i].gathered.reset();
    }
  }
  return result;
}

}  // namespace tangram::schedule
