// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/choose_sparse_backward.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "schedule/choose_kernels.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

// Costs of a multiprocessor, in steps of the KV-stationary kernel, which take 2.3 us where few of their cells are
// visible (docs/devlog/2026-11-25-gathered-backward.md).
constexpr double kStepCost = 2.55;
constexpr double kWorkTileCost = 2.5;
// Where it computes fewer cells than this for each visible one, there is nothing to gain.
constexpr double kLeastWaste = 1.3;
// By as much the estimate may be wrong, see choose_early.
constexpr double kClearGain = 2;
// Words of what it counts in: of a million rows 2^21.
constexpr size_t kMostWords = size_t{1} << 22;

bool has_whole_groups(const AttnSlice& slice) {
  return slice.k_range.begin % kGroupKeys == 0 && slice.k_range.end % kGroupKeys == 0;
}

}  // namespace

double kv_stationary_steps(const WorkList& work) {
  double steps = 0;
  for (const WorkTile& work_tile : work.work_tiles) steps += work_tile.num_steps;
  return steps;
}

/// Whether there are kernels that take the masks. Most masks end here.
bool SparseBackwardChoice::are_groups() const {
  return kernels_.backward_sparse.rows > 0 && std::ranges::all_of(masks_, [](std::span<const AttnSlice> slices) {
           return std::ranges::all_of(slices, has_whole_groups);
         });
}

int64_t SparseBackwardChoice::num_tiles() const {
  const int64_t rows = kernels_.backward_sparse.rows / packed_heads(shape_);
  return (shape_.seqlen_q + rows - 1) / rows;
}

/// Visible cells of all query heads.
double SparseBackwardChoice::visible_cells() const {
  const double heads = static_cast<double>(shape_.num_heads_q) / static_cast<double>(masks_.size());
  double visible = 0;
  for (const std::span<const AttnSlice> slices : masks_) {
    for (const AttnSlice& slice : slices) visible += static_cast<double>(area(slice)) * heads;
  }
  return visible;
}

/// Least cost of these kernels, if all steps were full, in steps of the other kernels.
double SparseBackwardChoice::least_cost() const {
  const double work_tiles = static_cast<double>(num_tiles()) * (shape_.num_heads_q / packed_heads(shape_));
  const auto [rows, keys] = kernels_.backward_sparse;
  return kStepCost * visible_cells() / (rows * keys) + kWorkTileCost * work_tiles;
}

/// If no two slices shared a step. A tile of queries touches two tiles of keys more, and one for its diagonals, than
/// what it shows would fill.
double SparseBackwardChoice::most_steps_kv_stationary() const {
  const auto touched = [](const Range& range, int64_t tile) {
    return range.empty() ? 0 : (range.end - 1) / tile - range.begin / tile + 1;
  };
  const int64_t tile_keys = kernels_.backward.block_m, tile_queries = kernels_.backward.block_n;
  double steps = 0;
  for (const std::span<const AttnSlice> slices : masks_) {
    for (const AttnSlice& slice : slices) {
      const auto rows = static_cast<double>(touched(slice.q_range, tile_queries));
      const double full = static_cast<double>(area(slice)) / static_cast<double>(tile_queries * tile_keys);
      steps += std::min(rows * static_cast<double>(touched(slice.k_range, tile_keys)), full + 3 * rows);
    }
  }
  return steps * shape_.num_heads_q / static_cast<double>(masks_.size());
}

/// Steps of the KV-stationary kernel if tiles began at multiples of their rows.
double SparseBackwardChoice::estimate_steps_kv_stationary() const {
  const int64_t tile_keys = kernels_.backward.block_m, tile_queries = kernels_.backward.block_n;
  const auto words = static_cast<size_t>((shape_.seqlen_k + 64 * tile_keys - 1) / (64 * tile_keys));
  const auto tiles = static_cast<size_t>((shape_.seqlen_q + tile_queries - 1) / tile_queries);
  if (words * tiles > kMostWords) return 0;
  std::vector<uint64_t> seen;  // of each tile of queries those of keys
  double steps = 0;
  for (const std::span<const AttnSlice> slices : masks_) {
    seen.assign(words * tiles, 0);
    for (const AttnSlice& slice : slices) {
      for (int64_t begin = slice.q_range.begin; begin < slice.q_range.end;) {
        const int64_t end = std::min(slice.q_range.end, (begin / tile_queries + 1) * tile_queries);
        const Range keys{slice.keys_of(begin).begin, slice.keys_of(end - 1).end};
        uint64_t* const row = seen.data() + static_cast<size_t>(begin / tile_queries) * words;
        for (int64_t tile = keys.begin / tile_keys; tile * tile_keys < keys.end; ++tile) {
          row[tile / 64] |= uint64_t{1} << tile % 64;
        }
        begin = end;
      }
    }
    int64_t pairs = 0;
    for (const uint64_t word : seen) pairs += std::popcount(word);
    steps += static_cast<double>(pairs) * shape_.num_heads_q / static_cast<double>(masks_.size());
  }
  return steps;
}

/// `least`: least_cost().
std::optional<GroupList> SparseBackwardChoice::choose(double least, double kv_stationary_steps,
                                                      double least_gain) const {
  const double cells = static_cast<double>(kernels_.backward.block_m) * kernels_.backward.block_n;
  if (kv_stationary_steps * cells < kLeastWaste * visible_cells()) return {};
  if (least_gain * least > kv_stationary_steps) return {};
  const auto [rows, keys] = kernels_.backward_sparse;
  const int pack = packed_heads(shape_), step_groups = keys / kGroupKeys;
  const auto groups_per_mask = shape_.num_heads_q / pack / static_cast<int>(masks_.size());
  std::vector<GroupList> lists;
  double cost = 0;
  for (const std::span<const AttnSlice> slices : masks_) {
    std::optional<GroupList> list =
        group_work_tiles(build_tile_list(slices, shape_.seqlen_q, shape_.seqlen_k, {rows / pack, keys}));
    if (!list || num_tiles() * (shape_.num_heads_q / pack) >= (int64_t{1} << 31) - 65536) return {};
    for (const GroupWorkTile& work_tile : list->work_tiles) {
      const int64_t steps = (work_tile.num_groups + step_groups - 1) / step_groups;
      cost += (kStepCost * static_cast<double>(steps) + kWorkTileCost) * groups_per_mask;
    }
    if (least_gain * cost >= kv_stationary_steps) return {};
    lists.push_back(std::move(*list));
  }
  if (lists.size() == 1) return std::move(lists[0]);
  return join_groups(lists, groups_per_mask);
}

std::optional<GroupList> SparseBackwardChoice::choose(double kv_stationary_steps) const {
  if (!are_groups()) return {};
  return choose(least_cost(), kv_stationary_steps, 1);
}

bool SparseBackwardChoice::may_choose() const {
  return are_groups() && most_steps_kv_stationary() >= kClearGain * least_cost();
}

std::optional<GroupList> SparseBackwardChoice::choose_early() const {
  if (!may_choose()) return {};
  return choose(least_cost(), estimate_steps_kv_stationary(), kClearGain);
}

bool SparseBackwardChoice::is_likely() const {
  if (!are_groups()) return false;
  const auto whole = [](const Range& range, int64_t unit) {
    return static_cast<double>((range.end + unit - 1) / unit * unit - range.begin / unit * unit);
  };
  double visible = 0, computed = 0;
  for (const std::span<const AttnSlice> slices : masks_) {
    for (const AttnSlice& slice : slices) {
      const auto cells = static_cast<double>(area(slice));
      const bool has_diagonal = slice.min_diag != kOpenMinDiag || slice.max_diag != kOpenMaxDiag;
      visible += cells;
      computed += has_diagonal ? cells
                               : whole(slice.q_range, kernels_.backward.block_n) *
                                     whole(slice.k_range, kernels_.backward.block_m);
    }
  }
  return visible > 0 && computed >= kLeastWaste * visible;
}

}  // namespace tangram::schedule
