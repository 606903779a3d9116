// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/group_work_tiles.hpp"

#include <algorithm>

namespace tangram::schedule {
namespace {

constexpr int32_t kPackedRows = 128;
// Masks take 256 bytes and time: two masks a work tile are free, and masks of an eighth of all groups.
constexpr size_t kFreeMasks = 2;
constexpr size_t kShareOfMasks = 8;

class Grouper {
 public:
  Grouper(const TileList& tiles, bool any_masks)
      : tiles_(tiles), any_masks_(any_masks), pack_(kPackedRows / tiles.shape.block_m) {}

  std::optional<GroupList> group() {
    result_.work_tiles.reserve(tiles_.work_tiles.size());
    for (const MaskTile& work_tile : tiles_.work_tiles) {
      if (!add(work_tile)) return std::nullopt;
    }
    std::ranges::stable_sort(result_.work_tiles, std::ranges::greater{}, &GroupWorkTile::num_groups);
    return std::move(result_);
  }

 private:
  std::span<const TileRange> runs_of(const MaskTile& work_tile) const {
    return std::span(tiles_.runs)
        .subspan(static_cast<size_t>(work_tile.run_begin),
                 static_cast<size_t>(work_tile.run_end - work_tile.run_begin));
  }

  /// False: the work tile is not one for this list.
  bool add(const MaskTile& work_tile) {
    keys_.clear(), masked_.clear();
    const auto mask_begin = static_cast<int32_t>(result_.masks.size());
    for (const TileRange& run : runs_of(work_tile)) {
      if (run.k_begin % kGroupKeys != 0 || (run.k_end % kGroupKeys != 0 && !ends_in_diagonal(run))) return false;
      for (int32_t key = run.k_begin; key < run.k_end; key += kGroupKeys) {
        if (run.full_begin <= key && key + kGroupKeys <= run.full_end) {
          keys_.push_back(key);
        } else {
          masked_.push_back(key);
          result_.masks.push_back(mask_of(work_tile, run, key));
        }
      }
    }
    if (!any_masks_ && result_.masks.size() > kFreeMasks * tiles_.work_tiles.size() + num_groups_ / kShareOfMasks)
      return false;
    if (keys_.empty() && !masked_.empty() && !sees_with_all_rows(work_tile, static_cast<size_t>(mask_begin)))
      return false;
    keys_.insert(keys_.end(), masked_.begin(), masked_.end());
    num_groups_ += keys_.size();
    mark_large_boxes(keys_);
    if (!std::equal(keys_.begin(), keys_.end(), result_.groups.begin() + last_, result_.groups.end())) {
      last_ = static_cast<std::ptrdiff_t>(result_.groups.size());
      result_.groups.insert(result_.groups.end(), keys_.begin(), keys_.end());
    }
    result_.work_tiles.push_back({work_tile.row_begin, work_tile.row_end, static_cast<int32_t>(last_),
                                  static_cast<int32_t>(keys_.size()), static_cast<int32_t>(masked_.size()), mask_begin,
                                  -1, 0});
    return true;
  }

  /// Whether a tile that is shorter than a group cuts one which later rows see whole.
  bool ends_in_diagonal(const TileRange& run) const {
    return any_masks_ && run.interval_begin < 0 && run.k_end == run.row_end + run.max_diag;
  }

  RowInterval seen(const MaskTile& work_tile, const TileRange& run, int32_t row) const {
    if (run.interval_begin >= 0) {
      return tiles_.intervals[static_cast<size_t>(run.interval_begin + row - work_tile.row_begin)];
    }
    if (row < run.row_begin || row >= run.row_end) return {0, 0};
    return {std::max(run.slice_k_begin, row + run.min_diag), std::min(run.slice_k_end, row + run.max_diag + 1)};
  }

  GroupMask mask_of(const MaskTile& work_tile, const TileRange& run, int32_t first_key) const {
    GroupMask mask{};
    for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) {
      const RowInterval interval = seen(work_tile, run, row);
      const int32_t begin = std::max(interval.begin, first_key), end = std::min(interval.end, first_key + kGroupKeys);
      for (int32_t key = begin; key < end; ++key) {
        for (int32_t r = (row - work_tile.row_begin) * pack_; r < (row - work_tile.row_begin + 1) * pack_; ++r) {
          mask.keys[key - first_key].words[r / 32] |= uint32_t{1} << r % 32;
        }
      }
    }
    return mask;
  }

  /// Whether each row of the work tile sees a key of the masks from `first` on.
  bool sees_with_all_rows(const MaskTile& work_tile, size_t first) const {
    RowBits all{};
    for (size_t i = first; i < result_.masks.size(); ++i) {
      for (const RowBits& key : result_.masks[i].keys) {
        for (int w = 0; w < 4; ++w) all.words[w] |= key.words[w];
      }
    }
    for (int32_t r = 0; r < (work_tile.row_end - work_tile.row_begin) * pack_; ++r) {
      if (!(all.words[r / 32] >> r % 32 & 1)) return false;
    }
    return true;
  }

  const TileList& tiles_;
  const bool any_masks_;
  const int32_t pack_;
  std::vector<int32_t> keys_, masked_;  // of the work tile at hand
  size_t num_groups_ = 0;               // of all work tiles
  std::ptrdiff_t last_ = 0;             // where the groups of the last work tile with other ones begin
  GroupList result_;
};

}  // namespace

std::optional<GroupList> group_work_tiles(const TileList& tiles, bool any_masks) {
  return Grouper(tiles, any_masks).group();
}

GroupList join_groups(std::span<const GroupList> lists, int32_t groups_per_mask) {
  GroupList joined;
  for (size_t g = 0; g < lists.size(); ++g) {
    const GroupList& list = lists[g];
    const auto group_begin = static_cast<int32_t>(joined.groups.size());
    const auto mask_begin = static_cast<int32_t>(joined.masks.size());
    joined.groups.insert(joined.groups.end(), list.groups.begin(), list.groups.end());
    joined.masks.insert(joined.masks.end(), list.masks.begin(), list.masks.end());
    for (int32_t i = 0; i < groups_per_mask; ++i) {
      for (GroupWorkTile work_tile : list.work_tiles) {
        work_tile.group_begin += group_begin;
        work_tile.mask_begin += mask_begin;
        work_tile.head_group = static_cast<int32_t>(g) * groups_per_mask + i;
        joined.work_tiles.push_back(work_tile);
      }
    }
  }
  return joined;
}

}  // namespace tangram::schedule
