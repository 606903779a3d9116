// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/query_backward/device_group_list.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/packing.hpp"
#include "cuda/scratch_layout.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::sm90::query_backward {
namespace {

// Of a multiprocessor, in steps of the KV-stationary kernel, which take 2.3 us where few of their cells are visible
// (docs/devlog/2026-11-25-gathered-backward.md).
constexpr double kStepCost = 2.55;
constexpr double kWorkTileCost = 2.5;
// Where it computes fewer cells than this for each visible one, there is nothing to gain.
constexpr double kLeastWaste = 1.3;

int64_t steps_of(const GroupWorkTile& work_tile) { return (work_tile.num_groups + kStepGroups - 1) / kStepGroups; }

int32_t num_key_groups(const AttnShape& shape) {
  return static_cast<int32_t>((shape.seqlen_k + kGroupKeys - 1) / kGroupKeys);
}

int64_t num_tiles(const AttnShape& shape) {
  const int64_t rows = kRows / packed_heads(shape);
  return (shape.seqlen_q + rows - 1) / rows;
}

bool has_whole_groups(const AttnSlice& slice) {
  return slice.k_range.begin % kGroupKeys == 0 && slice.k_range.end % kGroupKeys == 0;
}

/// Of both gradients.
size_t num_sums(const AttnShape& shape) {
  return size_t{2} * static_cast<size_t>(shape.num_heads_kv) * static_cast<size_t>(num_key_groups(shape)) *
         static_cast<size_t>(kGroupKeys * shape.head_dim);
}

/// What a call computes in, in memory of any content.
struct CallLayout {
  float *stats, *sums;
  int32_t* ticket;
  size_t bytes;

  CallLayout(const AttnShape& shape, void* workspace) {
    cuda::ScratchLayout layout(workspace);
    const auto head_groups = static_cast<size_t>(shape.num_heads_q / packed_heads(shape));
    stats = layout.take<float>(static_cast<size_t>(num_tiles(shape)) * head_groups * kStatsFloats);
    sums = layout.take<float>(num_sums(shape));
    ticket = layout.take<int32_t>(1);
    bytes = layout.bytes();
  }
};

constexpr int64_t kTileKeys = backward::kTileShape.block_m, kTileQueries = backward::kTileShape.block_n;
// By as much the estimate may be wrong, see choose_groups_early.
constexpr double kClearGain = 2;
// Words of what it counts in: of a million rows 2^21.
constexpr size_t kMostWords = size_t{1} << 22;

double visible_cells(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape) {
  const double heads = static_cast<double>(shape.num_heads_q) / static_cast<double>(masks.size());
  double visible = 0;
  for (const std::span<const AttnSlice> slices : masks) {
    for (const AttnSlice& slice : slices) visible += static_cast<double>(area(slice)) * heads;
  }
  return visible;
}

/// What these kernels take at least, if all steps were full, in steps of the others; negative: they cannot take the
/// masks.
double least_cost(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape) {
  if (!has_exact_kernels(shape.head_dim, shape.head_dim_v)) return -1;
  for (const std::span<const AttnSlice> slices : masks) {
    if (!std::ranges::all_of(slices, has_whole_groups)) return -1;  // most masks end here
  }
  const double work_tiles = static_cast<double>(num_tiles(shape)) * (shape.num_heads_q / packed_heads(shape));
  return kStepCost * visible_cells(masks, shape) / (kRows * kKeys) + kWorkTileCost * work_tiles;
}

/// If no two slices shared a step. A tile of queries touches two tiles of keys more, and one for its diagonals, than
/// what it shows would fill.
double most_steps_kv_stationary(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape) {
  const auto touched = [](const Range& range, int64_t tile) {
    return range.empty() ? 0 : (range.end - 1) / tile - range.begin / tile + 1;
  };
  double steps = 0;
  for (const std::span<const AttnSlice> slices : masks) {
    for (const AttnSlice& slice : slices) {
      const auto rows = static_cast<double>(touched(slice.q_range, kTileQueries));
      const double full = static_cast<double>(area(slice)) / (kTileQueries * kTileKeys);
      steps += std::min(rows * static_cast<double>(touched(slice.k_range, kTileKeys)), full + 3 * rows);
    }
  }
  return steps * shape.num_heads_q / static_cast<double>(masks.size());
}

/// As if tiles began at multiples of their rows.
double estimate_steps_kv_stationary(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape) {
  const auto words = static_cast<size_t>((shape.seqlen_k + 64 * kTileKeys - 1) / (64 * kTileKeys));
  const auto tiles = static_cast<size_t>((shape.seqlen_q + kTileQueries - 1) / kTileQueries);
  if (words * tiles > kMostWords) return 0;
  std::vector<uint64_t> seen;  // of each tile of queries those of keys
  double steps = 0;
  for (const std::span<const AttnSlice> slices : masks) {
    seen.assign(words * tiles, 0);
    for (const AttnSlice& slice : slices) {
      for (int64_t begin = slice.q_range.begin; begin < slice.q_range.end;) {
        const int64_t end = std::min(slice.q_range.end, (begin / kTileQueries + 1) * kTileQueries);
        const Range keys{slice.keys_of(begin).begin, slice.keys_of(end - 1).end};
        uint64_t* const row = seen.data() + static_cast<size_t>(begin / kTileQueries) * words;
        for (int64_t tile = keys.begin / kTileKeys; tile * kTileKeys < keys.end; ++tile) {
          row[tile / 64] |= uint64_t{1} << tile % 64;
        }
        begin = end;
      }
    }
    int64_t pairs = 0;
    for (const uint64_t word : seen) pairs += std::popcount(word);
    steps += static_cast<double>(pairs) * shape.num_heads_q / static_cast<double>(masks.size());
  }
  return steps;
}

/// `least`: least_cost() of the masks.
std::optional<schedule::GroupList> choose(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                                          double least, double kv_stationary_steps, double least_gain) {
  constexpr double kCells = kTileKeys * kTileQueries;
  if (kv_stationary_steps * kCells < kLeastWaste * visible_cells(masks, shape)) return {};
  if (least_gain * least > kv_stationary_steps) return {};
  const int pack = packed_heads(shape);
  const auto groups_per_mask = shape.num_heads_q / pack / static_cast<int>(masks.size());
  std::vector<schedule::GroupList> lists;
  double cost = 0;
  for (const std::span<const AttnSlice> slices : masks) {
    std::optional<schedule::GroupList> list = schedule::group_work_tiles(
        schedule::build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, {kRows / pack, kKeys}));
    if (!list || num_tiles(shape) * (shape.num_heads_q / pack) >= (int64_t{1} << 31) - 65536) return {};
    for (const GroupWorkTile& work_tile : list->work_tiles) {
      cost += (kStepCost * static_cast<double>(steps_of(work_tile)) + kWorkTileCost) * groups_per_mask;
    }
    if (least_gain * cost >= kv_stationary_steps) return {};
    lists.push_back(std::move(*list));
  }
  if (lists.size() == 1) return std::move(lists[0]);
  return schedule::join_groups(lists, groups_per_mask);
}

}  // namespace

DeviceGroupList::DeviceGroupList(const schedule::GroupList& list, const AttnShape& shape)
    : shape_(shape), num_work_tiles_(static_cast<int32_t>(list.work_tiles.size())) {
  if (list.work_tiles.empty() || list.work_tiles[0].head_group < 0)
    num_head_groups_ = shape.num_heads_q / packed_heads(shape);
  for (const GroupWorkTile& work_tile : list.work_tiles) {
    total_steps_ += steps_of(work_tile);
    longest_steps_ = std::max(longest_steps_, steps_of(work_tile));
  }
  work_tiles_ = lists_.add(list.work_tiles);
  groups_ = lists_.add(list.groups);
  masks_ = lists_.add(list.masks);
  lists_.upload();
}

GroupListView DeviceGroupList::view() const {
  GroupListView view{lists_.at<GroupWorkTile>(work_tiles_),
                     lists_.at<int32_t>(groups_),
                     lists_.at<schedule::RowBits>(masks_),
                     num_work_tiles_,
                     num_head_groups_,
                     1};
  if (num_head_groups_ > 1) {
    const int64_t bytes_of_key = int64_t{2} * shape_.head_dim * (2 + 4);  // keys, values and both sums
    const int pack = packed_heads(shape_);
    // Sums that leave the cache are added at half the rate, which costs more than an uneven end.
    const int64_t heads = std::max<int64_t>(gpu_of_current_device().l2_bytes / (shape_.seqlen_k * bytes_of_key + 1), 1);
    const int64_t most = heads * (shape_.num_heads_q / shape_.num_heads_kv / pack);
    view.groups_per_section = static_cast<int32_t>(
        std::min<int64_t>(groups_per_section(shape_, bytes_of_key, total_steps_, longest_steps_, pack), most));
  }
  return view;
}

size_t workspace_bytes(const AttnShape& shape) { return CallLayout(shape, nullptr).bytes; }

void fill(Params& params, PrePostParams& pre_post, const GroupListView& lists, const AttnShape& shape,
          void* workspace) {
  const int pack = packed_heads(shape);
  const CallLayout layout(shape, workspace);
  params.stats = pre_post.stats = layout.stats;
  params.dk_sums = pre_post.dk_sums = layout.sums;
  params.dv_sums = layout.sums + num_sums(shape) / 2;
  params.ticket = pre_post.ticket = layout.ticket;
  params.work_tiles = lists.work_tiles;
  params.groups = lists.groups;
  params.masks = lists.masks;
  params.num_work_tiles = lists.num_work_tiles;
  params.num_head_groups = lists.num_head_groups;
  params.groups_per_section = lists.groups_per_section;
  pre_post.num_head_groups = shape.num_heads_q / pack;
  params.num_tiles = pre_post.num_tiles = static_cast<int32_t>(num_tiles(shape));
  params.num_key_groups = pre_post.num_key_groups = num_key_groups(shape);
  params.pack_log2 = pre_post.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  params.heads_per_kv = shape.num_heads_q / shape.num_heads_kv;
  pre_post.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  pre_post.seqlen_k = static_cast<int32_t>(shape.seqlen_k);
  pre_post.num_heads_q = shape.num_heads_q;
  pre_post.num_heads_kv = shape.num_heads_kv;
}

double kv_stationary_steps(const schedule::WorkList& work) {
  double steps = 0;
  for (const schedule::WorkTile& work_tile : work.work_tiles) steps += work_tile.num_steps;
  return steps;
}

std::optional<schedule::GroupList> choose_groups(std::span<const std::span<const AttnSlice>> masks,
                                                 const AttnShape& shape, double kv_stationary_steps) {
  const double least = least_cost(masks, shape);
  if (least < 0) return {};
  return choose(masks, shape, least, kv_stationary_steps, 1);
}

bool may_choose_groups(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape) {
  const double least = least_cost(masks, shape);
  return least >= 0 && most_steps_kv_stationary(masks, shape) >= kClearGain * least;
}

std::optional<schedule::GroupList> choose_groups_early(std::span<const std::span<const AttnSlice>> masks,
                                                       const AttnShape& shape) {
  if (!may_choose_groups(masks, shape)) return {};
  return choose(masks, shape, least_cost(masks, shape), estimate_steps_kv_stationary(masks, shape), kClearGain);
}

bool is_scattered(std::span<const AttnSlice> slices, const AttnShape& shape) {
  if (!has_exact_kernels(shape.head_dim, shape.head_dim_v) || !std::ranges::all_of(slices, has_whole_groups)) {
    return false;
  }
  constexpr int64_t kKeysOfTile = backward::kTileShape.block_m, kRowsOfTile = backward::kTileShape.block_n;
  const auto whole = [](const Range& range, int64_t unit) {
    return static_cast<double>((range.end + unit - 1) / unit * unit - range.begin / unit * unit);
  };
  double visible = 0, computed = 0;
  for (const AttnSlice& slice : slices) {
    const auto cells = static_cast<double>(area(slice));
    const bool has_diagonal = slice.min_diag != kOpenMinDiag || slice.max_diag != kOpenMaxDiag;
    visible += cells;
    computed += has_diagonal ? cells : whole(slice.q_range, kRowsOfTile) * whole(slice.k_range, kKeysOfTile);
  }
  return visible > 0 && computed >= kLeastWaste * visible;
}

}  // namespace tangram::sm90::query_backward
