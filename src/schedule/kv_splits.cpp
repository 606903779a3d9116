// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/kv_splits.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/multiprocessors.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::schedule {
namespace {

// Fixed cost in steps (tiles of keys) of a whole work tile, and of a part, which writes float32 from registers.
constexpr double kWholeCost = 1.5;
constexpr double kPartCost = 2.5;
// Launch of the combine kernel, in steps.
constexpr double kMergeCost = 2;
// Splitting must pay by this factor. Splitting is not tried if the longest work tile has fewer steps, or if a
// multiprocessor has more work tiles: the gain in the last wave would be below the error of the estimate.
constexpr double kWantedGain = 1.25;
constexpr int64_t kLeastSteps = 16;
constexpr int64_t kMostWorkTiles = 2;
constexpr int64_t kMostParts = 6;  // per multiprocessor
// If a mask has more work tiles, only the last ones are split, and only if the last wave is far from full.
constexpr int64_t kMostWorkTilesOfLast = 40;
constexpr int64_t kMostWavesOfLast = 1;
constexpr int64_t kLeastStepsOfPart = 3;
constexpr double kWantedGainOfLast = 1.01;

int64_t steps_of(const TileRange& run, int64_t block_n) {
  return steps_of_keys(int64_t{run.k_end} - run.k_begin, block_n);
}

int64_t steps_of(const TileList& tiles, const MaskTile& work_tile) {
  return work_tile_steps(work_tile, tiles.runs, tiles.shape.block_n);
}

int64_t parts_of(int64_t steps, int64_t max_steps) { return std::max<int64_t>((steps + max_steps - 1) / max_steps, 1); }

class Cutter {
 public:
  Cutter(const TileList& tiles, const std::vector<int64_t>& num_parts) : tiles_(tiles), num_parts_(num_parts) {
    result_.list.shape = tiles.shape;
    result_.list.seqlen_q = tiles.seqlen_q;
    result_.list.seqlen_k = tiles.seqlen_k;
  }

  PartList cut() {
    for (size_t i = 0; i < tiles_.work_tiles.size(); ++i) cut_work_tile(tiles_.work_tiles[i], num_parts_[i]);
    sort_parts();
    return std::move(result_);
  }

 private:
  void cut_work_tile(const MaskTile& work_tile, int64_t num_parts) {
    const int64_t steps = steps_of(tiles_, work_tile);
    const int32_t rows = work_tile.row_end - work_tile.row_begin;
    if (num_parts > 1) {
      result_.tiles.push_back(
          {work_tile.row_begin, rows, static_cast<int32_t>(result_.num_rows), static_cast<int32_t>(num_parts)});
    }
    for (int64_t p = 0; p < num_parts; ++p) {
      MaskTile part = work_tile;
      part.run_begin = static_cast<int32_t>(result_.list.runs.size());
      add_runs(work_tile, p * steps / num_parts, (p + 1) * steps / num_parts);
      part.run_end = static_cast<int32_t>(result_.list.runs.size());
      result_.list.work_tiles.push_back(part);
      result_.first_rows.push_back(num_parts > 1 ? static_cast<int32_t>(result_.num_rows) : -1);
      positions_.push_back(p);
      if (num_parts > 1) result_.num_rows += rows;
    }
  }

  /// Steps [begin, end) of a work tile.
  void add_runs(const MaskTile& work_tile, int64_t begin, int64_t end) {
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      const TileRange& run = tiles_.runs[static_cast<size_t>(r)];
      const int64_t steps = steps_of(run, tiles_.shape.block_n);
      const int64_t first = std::max<int64_t>(begin, 0), last = std::min(end, steps);
      if (first < last) add_run(work_tile, run, first, last);
      begin -= steps;
      end -= steps;
    }
  }

  void add_run(const MaskTile& work_tile, const TileRange& run, int64_t first_step, int64_t end_step) {
    const int64_t block = tiles_.shape.block_n;
    TileRange part = run;
    part.k_begin = static_cast<int32_t>(run.k_begin + first_step * block);
    part.k_end = static_cast<int32_t>(std::min<int64_t>(run.k_begin + end_step * block, run.k_end));
    part.full_begin = std::max(run.full_begin, part.k_begin);
    part.full_end = std::min(run.full_end, part.k_end);
    if (part.full_begin >= part.full_end) part.full_begin = part.full_end = 0;
    if (run.interval_begin < 0) {
      part.slice_k_begin = std::max(run.slice_k_begin, part.k_begin);
      part.slice_k_end = std::min(run.slice_k_end, part.k_end);
    } else {
      part.interval_begin = static_cast<int32_t>(result_.list.intervals.size());
      for (int32_t row = 0; row < work_tile.row_end - work_tile.row_begin; ++row) {
        const RowInterval& keys = tiles_.intervals[static_cast<size_t>(run.interval_begin + row)];
        result_.list.intervals.push_back({std::max(keys.begin, part.k_begin), std::min(keys.end, part.k_end)});
      }
    }
    result_.list.runs.push_back(part);
  }

  /// Longest first, in eighths of the longest; then first parts first, since present keys come first in work tiles for
  /// awaited keys. Work tiles that are not sorted by length are all for awaited keys.
  void sort_parts() {
    if (result_.list.work_tiles.empty()) return;
    std::vector<size_t> order(result_.list.work_tiles.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::vector<int64_t> steps, steps_before;
    for (const MaskTile& work_tile : result_.list.work_tiles) steps.push_back(steps_of(result_.list, work_tile));
    for (const MaskTile& work_tile : tiles_.work_tiles) steps_before.push_back(steps_of(tiles_, work_tile));
    const bool by_length = std::is_sorted(steps_before.rbegin(), steps_before.rend());
    const int64_t longest = std::max<int64_t>(*std::max_element(steps.begin(), steps.end()), 1);
    const auto eighths = [&](size_t i) { return by_length ? steps[i] * 8 / longest : 0; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(-eighths(a), positions_[a]) < std::pair(-eighths(b), positions_[b]);
    });
    std::vector<MaskTile> work_tiles;
    std::vector<int32_t> first_rows;
    for (const size_t i : order) {
      work_tiles.push_back(result_.list.work_tiles[i]);
      first_rows.push_back(result_.first_rows[i]);
    }
    result_.list.work_tiles = std::move(work_tiles);
    result_.first_rows = std::move(first_rows);
  }

  const TileList& tiles_;
  const std::vector<int64_t>& num_parts_;
  std::vector<int64_t> positions_;  // of each part in its work tile
  PartList result_;
};

double work_tile_cost(int64_t steps) { return static_cast<double>(steps) + kWholeCost; }

/// Work tiles of equal cost, one after the other.
void run(Multiprocessors& sms, double cost, int64_t times) {
  for (int64_t i = 0; i < times; ++i) sms.run(cost);
}

/// Keeps the fastest of the numbers of parts that offer() is called with.
struct Search {
  const TileList& tiles;
  const AttnShape& shape;
  const GpuModel& gpu;
  int64_t num_groups;
  int num_sms;
  std::vector<int64_t> steps;
  double best = 0;
  std::vector<int64_t> best_parts;

  double step_seconds() const {
    const int64_t heads = shape.num_heads_q / num_groups;  // whose rows share a tile
    return gpu.forward_tile_seconds(static_cast<double>(tiles.shape.block_m * heads * tiles.shape.block_n),
                                    2.0 * (shape.head_dim + shape.head_dim_v));
  }
  /// Lower bound of any schedule of whole work tiles, in steps: total cost ÷ multiprocessors.
  double even_share() const {
    double sum = 0;
    for (const int64_t length : steps) sum += work_tile_cost(length);
    return sum * static_cast<double>(num_groups) / num_sms;
  }

  /// Work tiles [begin, end) of the list, in their parts, longest first.
  void schedule_parts(Multiprocessors& sms, const std::vector<int64_t>& num_parts, size_t begin) const {
    std::vector<std::pair<int64_t, double>> parts;  // steps, cost
    for (size_t i = begin; i < steps.size(); ++i) {
      for (int64_t p = 0; p < num_parts[i]; ++p) {
        const int64_t length = (p + 1) * steps[i] / num_parts[i] - p * steps[i] / num_parts[i];
        parts.emplace_back(length, num_parts[i] > 1 ? static_cast<double>(length) + kPartCost : work_tile_cost(length));
      }
    }
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [length, cost] : parts) run(sms, cost, num_groups);
  }

  void offer(const Multiprocessors& sms, const std::vector<int64_t>& num_parts) {
    int64_t rows = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (num_parts[i] > 1) rows += num_parts[i] * (tiles.work_tiles[i].row_end - tiles.work_tiles[i].row_begin);
    }
    const double bytes = static_cast<double>(rows * shape.num_heads_q * shape.head_dim_v) * 2 * sizeof(float);
    const double time = sms.end() + kMergeCost + bytes / gpu.stream_bytes_per_s / step_seconds();
    if (time <= best) {
      best = time;
      best_parts = num_parts;
    }
  }

  /// All work tiles, into parts of equal length.
  void split_all() {
    const int64_t longest = *std::max_element(steps.begin(), steps.end());
    for (int64_t most_parts = 2; most_parts <= std::min<int64_t>(longest, num_sms);
         most_parts += std::max<int64_t>(most_parts / 16, 1)) {
      std::vector<int64_t> num_parts;
      int64_t parts = 0;
      for (const int64_t count : steps)
        parts += num_parts.emplace_back(parts_of(count, (longest + most_parts - 1) / most_parts));
      if (parts * num_groups > kMostParts * num_sms) break;
      Multiprocessors sms(num_sms);
      schedule_parts(sms, num_parts, 0);
      offer(sms, num_parts);
    }
  }
  /// The work tiles scheduled last, of which there may be too few for all multiprocessors. The list is sorted, longest
  /// first.
  void split_last() {
    const int64_t count = static_cast<int64_t>(steps.size());
    const int64_t most = std::min(count - 1, (kMostWavesOfLast * num_sms - 1) / num_groups + 1);
    Multiprocessors before(num_sms);
    for (int64_t i = 0; i < count - most; ++i) run(before, work_tile_cost(steps[static_cast<size_t>(i)]), num_groups);
    for (int64_t first = count - most; first < count; ++first) {
      for (const int64_t most_parts : {2, 3, 4, 6, 8}) {
        if (most_parts * kLeastStepsOfPart > steps.back()) break;
        std::vector<int64_t> num_parts(steps.size(), 1);
        std::fill(num_parts.begin() + first, num_parts.end(), most_parts);
        Multiprocessors sms = before;
        schedule_parts(sms, num_parts, static_cast<size_t>(first));
        offer(sms, num_parts);
      }
      run(before, work_tile_cost(steps[static_cast<size_t>(first)]), num_groups);
    }
  }
};

}  // namespace

double whole_work_tiles_steps(std::vector<int64_t> steps, int64_t num_groups, const GpuModel& gpu) {
  if (steps.empty()) return 0;
  // In half steps, and equal work tiles at once, of which there are many.
  std::vector<int64_t> num_work_tiles(static_cast<size_t>(*std::max_element(steps.begin(), steps.end())) + 1);
  for (const int64_t length : steps) ++num_work_tiles[static_cast<size_t>(length)];
  const auto halves_of = [](size_t length) {
    return static_cast<int64_t>(2 * work_tile_cost(static_cast<int64_t>(length)));
  };
  CountedMultiprocessors sms(gpu.multiprocessors, halves_of(num_work_tiles.size() - 1));
  for (size_t length = num_work_tiles.size(); length-- > 0;)
    sms.run(halves_of(length), num_work_tiles[length] * num_groups);
  return static_cast<double>(sms.end()) / 2;
}

PartList cut_work_tiles(const TileList& tiles, const std::vector<int64_t>& num_parts) {
  return Cutter(tiles, num_parts).cut();
}

PartList cut_work_tiles(const TileList& tiles, int64_t max_steps) {
  std::vector<int64_t> num_parts;
  for (const MaskTile& work_tile : tiles.work_tiles)
    num_parts.push_back(parts_of(steps_of(tiles, work_tile), max_steps));
  return cut_work_tiles(tiles, num_parts);
}

std::optional<PartList> split_work_tiles(const TileList& tiles, const AttnShape& shape, int64_t num_groups,
                                         const GpuModel& gpu) {
  const int num_sms = gpu.multiprocessors;
  const int64_t work_tiles = static_cast<int64_t>(tiles.work_tiles.size());
  if (work_tiles == 0 || work_tiles * num_groups > kMostWorkTilesOfLast * num_sms) return {};
  Search search{tiles, shape, gpu, num_groups, num_sms, {}, 0, {}};
  search.steps.reserve(tiles.work_tiles.size());
  for (const MaskTile& work_tile : tiles.work_tiles) search.steps.push_back(steps_of(tiles, work_tile));
  // Lists for awaited keys do not begin with their longest work tiles.
  if (*std::max_element(search.steps.begin(), search.steps.end()) < kLeastSteps) return {};
  const double whole = whole_work_tiles_steps(search.steps, num_groups, gpu);
  if (work_tiles * num_groups <= kMostWorkTiles * num_sms) {
    search.best = whole / kWantedGain;
    search.split_all();
  } else if (std::is_sorted(search.steps.rbegin(), search.steps.rend())) {
    search.best = whole / kWantedGainOfLast;
    if (search.even_share() + kMergeCost <= search.best) search.split_last();
  }
  if (search.best_parts.empty()) return {};
  PartList result = cut_work_tiles(tiles, search.best_parts);
  result.predicted_steps = search.best;
  return result;
}

}  // namespace tangram::schedule
