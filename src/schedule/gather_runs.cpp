// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/gather_runs.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

constexpr int64_t kLeastShareOfItem = 8;   // one in so many steps saved
constexpr int64_t kLeastShareOfList = 20;  // likewise
constexpr int32_t kLargeBox = 4;           // groups

int64_t length(const TileRun& run) { return run.k_end - run.k_begin; }

/// Whether all rows of the tile see all of a run, which is whole groups.
bool can_be_gathered(const TileRun& run) {
  return run.full_begin == run.k_begin && run.full_end == run.k_end && length(run) > 0 && length(run) % kGroupKeys == 0;
}

struct Saving {
  int64_t before = 0;  // steps of an item
  int64_t saved = 0;   // of them, by gathering
  bool pays() const { return saved * kLeastShareOfItem >= before && saved > 0; }
};

Saving saving_of(std::span<const TileRun> runs, int64_t block_n) {
  Saving saving;
  int64_t keys = 0;
  for (const TileRun& run : runs) {
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
    const auto has_several_runs = [](const TileItem& item) { return item.run_end - item.run_begin > 1; };
    if (std::none_of(tiles_.items.begin(), tiles_.items.end(), has_several_runs)) return std::nullopt;
    int64_t before = 0, saved = 0;
    std::vector<int64_t> steps;
    std::vector<bool> gathers;
    steps.reserve(tiles_.items.size());
    gathers.reserve(tiles_.items.size());
    for (const TileItem& item : tiles_.items) {
      const Saving saving = saving_of(runs_of(item), tiles_.shape.block_n);
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
    steps.reserve(tiles_.items.size());
    for (const TileItem& item : tiles_.items) {
      const Saving saving = saving_of(runs_of(item), tiles_.shape.block_n);
      steps.push_back(saving.before - saving.saved);
    }
    return take(std::vector<bool>(tiles_.items.size(), true), steps);
  }

 private:
  /// Items in the order of their steps if they were.
  GatheredList take(const std::vector<bool>& gathers, const std::vector<int64_t>& steps) {
    std::vector<size_t> order(tiles_.items.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (was_sorted_) {
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return steps[a] > steps[b]; });
    }
    result_.items.reserve(order.size());
    for (const size_t i : order) add_item(tiles_.items[i], gathers[i]);
    return std::move(result_);
  }

  std::span<const TileRun> runs_of(const TileItem& item) const {
    return std::span(tiles_.runs)
        .subspan(static_cast<size_t>(item.run_begin), static_cast<size_t>(item.run_end - item.run_begin));
  }

  void add_item(const TileItem& item, bool gathers) {
    TileItem added = item;
    added.run_begin = static_cast<int32_t>(result_.runs.size());
    const std::span<const TileRun> runs = runs_of(item);
    if (gathers) add_gathered(item, runs);
    for (const TileRun& run : runs) {
      if (!gathers || !can_be_gathered(run)) result_.runs.push_back(run);
    }
    added.run_end = static_cast<int32_t>(result_.runs.size());
    result_.items.push_back(added);
  }

  void add_gathered(const TileItem& item, std::span<const TileRun> runs) {
    groups_.clear();
    for (const TileRun& run : runs) {
      if (!can_be_gathered(run)) continue;
      for (int32_t key = run.k_begin; key < run.k_end; key += kGroupKeys) groups_.push_back(key);
    }
    if (groups_.empty()) return;
    const auto keys = static_cast<int32_t>(groups_.size() * kGroupKeys);
    mark_large_boxes(groups_);
    TileRun& run = result_.runs.emplace_back();
    run.k_end = run.full_end = run.slice_k_end = keys;
    run.row_begin = item.row_begin;
    run.row_end = item.row_end;
    run.min_diag = -item.row_end;  // neither binds
    run.max_diag = keys - item.row_begin;
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
  std::vector<int32_t> groups_;  // of the item at hand
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

GatheredList gather_none(const TileList& tiles) { return {tiles.items, tiles.runs, {}}; }

bool cuts_blocks(const TileList& tiles) {
  int64_t cut = 0, runs = 0, previous = INT64_MAX;
  for (const TileItem& item : tiles.items) {
    const int64_t steps = item_steps(item, tiles.runs, tiles.shape.block_n);
    if (steps > previous) return false;
    previous = steps;
    for (int32_t r = item.run_begin; r < item.run_end; ++r, ++runs) {
      const TileRun& run = tiles.runs[static_cast<size_t>(r)];
      cut += run.full_begin != run.k_begin || run.full_end != run.k_end;
    }
  }
  return cut > 0 && cut * kLeastShareOfList >= runs;
}

bool may_gather(const TileList& tiles) {
  int64_t before = 0, saved = 0, previous = INT64_MAX;
  for (const TileItem& item : tiles.items) {
    int64_t steps = 0, keys = 0;
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
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
