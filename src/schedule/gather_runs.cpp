// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/gather_runs.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

constexpr int64_t kLeastShareOfWorkTile = 8;  // one in so many steps saved
constexpr int64_t kLeastShareOfList = 20;     // likewise
constexpr int32_t kLargeBox = 4;              // groups

int64_t length(const TileRange& run) { return run.k_end - run.k_begin; }

/// Whether all rows of the tile see all of a run, which is whole groups.
bool can_be_gathered(const TileRange& run) {
  return run.full_begin == run.k_begin && run.full_end == run.k_end && length(run) > 0 && length(run) % kGroupKeys == 0;
}

struct Saving {
  int64_t before = 0;  // steps of a work tile
  int64_t saved = 0;   // of them, by gathering
  bool pays() const { return saved * kLeastShareOfWorkTile >= before && saved > 0; }
};

Saving saving_of(std::span<const TileRange> runs, int64_t block_n) {
  Saving saving;
  int64_t keys = 0;
  for (const TileRange& run : runs) {
    const int64_t steps = steps_of_keys(length(run), block_n);
    saving.before += steps;
    if (can_be_gathered(run)) saving.saved += steps, keys += length(run);
  }
  saving.saved -= steps_of_keys(keys, block_n);
  return saving;
}

class Gatherer {
 public:
  explicit Gatherer(const TileList& tiles) : tiles_(tiles) {}

  std::optional<GatheredList> gather() {
    const auto has_several_runs = [](const MaskTile& work_tile) { return work_tile.run_end - work_tile.run_begin > 1; };
    if (std::none_of(tiles_.work_tiles.begin(), tiles_.work_tiles.end(), has_several_runs)) return std::nullopt;
    int64_t before = 0, saved = 0;
    std::vector<int64_t> steps;
    std::vector<bool> gathers;
    steps.reserve(tiles_.work_tiles.size());
    gathers.reserve(tiles_.work_tiles.size());
    for (const MaskTile& work_tile : tiles_.work_tiles) {
      const Saving saving = saving_of(runs_of(work_tile), tiles_.shape.block_n);
      before += saving.before;
      gathers.push_back(saving.pays());
      steps.push_back(saving.before);
      if (saving.pays()) saved += saving.saved, steps.back() -= saving.saved;
      was_sorted_ = was_sorted_ && saving.before <= previous_;
      previous_ = saving.before;
    }
    if (saved * kLeastShareOfList < before || saved == 0) return std::nullopt;
    return take(gathers, steps);
  }

  GatheredList gather_all() {
    std::vector<int64_t> steps;
    steps.reserve(tiles_.work_tiles.size());
    for (const MaskTile& work_tile : tiles_.work_tiles) {
      const Saving saving = saving_of(runs_of(work_tile), tiles_.shape.block_n);
      steps.push_back(saving.before - saving.saved);
    }
    return take(std::vector<bool>(tiles_.work_tiles.size(), true), steps);
  }

 private:
  /// Work tiles in the order of their steps if they were.
  GatheredList take(const std::vector<bool>& gathers, const std::vector<int64_t>& steps) {
    std::vector<size_t> order(tiles_.work_tiles.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (was_sorted_) {
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return steps[a] > steps[b]; });
    }
    result_.work_tiles.reserve(order.size());
    for (const size_t i : order) add_work_tile(tiles_.work_tiles[i], gathers[i]);
    return std::move(result_);
  }

  std::span<const TileRange> runs_of(const MaskTile& work_tile) const {
    return std::span(tiles_.runs)
        .subspan(static_cast<size_t>(work_tile.run_begin),
                 static_cast<size_t>(work_tile.run_end - work_tile.run_begin));
  }

  void add_work_tile(const MaskTile& work_tile, bool gathers) {
    MaskTile added = work_tile;
    added.run_begin = static_cast<int32_t>(result_.runs.size());
    const std::span<const TileRange> runs = runs_of(work_tile);
    if (gathers) add_gathered(work_tile, runs);
    for (const TileRange& run : runs) {
      if (!gathers || !can_be_gathered(run)) result_.runs.push_back(run);
    }
    added.run_end = static_cast<int32_t>(result_.runs.size());
    result_.work_tiles.push_back(added);
  }

  void add_gathered(const MaskTile& work_tile, std::span<const TileRange> runs) {
    groups_.clear();
    for (const TileRange& run : runs) {
      if (!can_be_gathered(run)) continue;
      for (int32_t key = run.k_begin; key < run.k_end; key += kGroupKeys) groups_.push_back(key);
    }
    if (groups_.empty()) return;
    const auto keys = static_cast<int32_t>(groups_.size() * kGroupKeys);
    mark_large_boxes(groups_);
    TileRange& run = result_.runs.emplace_back();
    run.k_end = run.full_end = run.slice_k_end = keys;
    run.row_begin = work_tile.row_begin;
    run.row_end = work_tile.row_end;
    run.min_diag = -work_tile.row_end;  // neither binds
    run.max_diag = keys - work_tile.row_begin;
    // Tiles of the same block of queries see the same keys.
    if (result_.groups.size() - last_ != groups_.size() ||
        !std::equal(groups_.begin(), groups_.end(), result_.groups.begin() + static_cast<std::ptrdiff_t>(last_))) {
      last_ = result_.groups.size();
      result_.groups.insert(result_.groups.end(), groups_.begin(), groups_.end());
    }
    run.group_begin = static_cast<int32_t>(last_);
  }

  const TileList& tiles_;
  bool was_sorted_ = true;
  int64_t previous_ = INT64_MAX;
  std::vector<int32_t> groups_;  // of the work tile at hand
  size_t last_ = 0;              // where the groups of the last gathered run begin
  GatheredList result_;
};

}  // namespace

void mark_large_boxes(std::vector<int32_t>& groups) {
  for (size_t i = 0; i + kLargeBox <= groups.size(); ++i) {
    bool follow = true;
    for (int32_t j = 1; j < kLargeBox; ++j)
      follow = follow && groups[i + static_cast<size_t>(j)] == groups[i] + j * kGroupKeys;
    if (follow) groups[i] = ~groups[i];
  }
}

std::optional<GatheredList> gather_runs(const TileList& tiles) { return Gatherer(tiles).gather(); }

GatheredList gather_all_runs(const TileList& tiles) { return Gatherer(tiles).gather_all(); }

GatheredList gather_none(const TileList& tiles) { return {tiles.work_tiles, tiles.runs, {}}; }

bool cuts_blocks(const TileList& tiles) {
  int64_t cut = 0, runs = 0, previous = INT64_MAX;
  for (const MaskTile& work_tile : tiles.work_tiles) {
    const int64_t steps = work_tile_steps(work_tile, tiles.runs, tiles.shape.block_n);
    if (steps > previous) return false;
    previous = steps;
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r, ++runs) {
      const TileRange& run = tiles.runs[static_cast<size_t>(r)];
      cut += run.full_begin != run.k_begin || run.full_end != run.k_end;
    }
  }
  return cut > 0 && cut * kLeastShareOfList >= runs;
}

bool may_gather(const TileList& tiles) {
  int64_t before = 0, saved = 0, previous = INT64_MAX;
  for (const MaskTile& work_tile : tiles.work_tiles) {
    int64_t steps = 0, keys = 0;
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      const int64_t run_keys = length(tiles.runs[static_cast<size_t>(r)]);
      steps += steps_of_keys(run_keys, tiles.shape.block_n);
      keys += run_keys;
    }
    if (steps > previous) return false;
    previous = steps;
    before += steps;
    saved += steps - steps_of_keys(keys, tiles.shape.block_n);
  }
  return saved > 0 && saved * kLeastShareOfList >= before;
}

}  // namespace tangram::schedule
