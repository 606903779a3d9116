// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/block_image.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "core/require.hpp"
#include "core/rounding.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

constexpr size_t kAlignment = 256;
static_assert(sizeof(GroupMask) == kAlignment);

/// Places one array behind the other, each aligned.
struct Offsets {
  size_t end = 0;

  template <class T>
  size_t take(int64_t count) {
    const size_t offset = round_up(end, kAlignment);
    end = offset + static_cast<size_t>(count) * sizeof(T);
    return offset;
  }
};

/// Head groups whose share of `bytes_of_key` for each key of a K/V head `cache` holds; at least those of one.
int64_t fitting(const AttnShape& shape, int64_t bytes_of_key, int64_t cache, int head_groups) {
  const int64_t heads = cache / std::max<int64_t>(shape.seqlen_k * bytes_of_key, 1);
  return std::max<int64_t>(heads, 1) * std::max(head_groups / shape.num_heads_kv, 1);
}

std::vector<const KeyLists*> keys_of(std::span<const BlockMask> masks) {
  std::vector<const KeyLists*> keys;
  for (const BlockMask& mask : masks) keys.push_back(&mask.keys);
  return keys;
}

}  // namespace

BlockImageLayout::BlockImageLayout(const AttnShape& shape, int tile_rows, const MaskCapacity& capacity,
                                   const GpuModel& gpu, const std::optional<ForwardTiles>& forward, bool may_rest)
    : shape_(shape),
      capacity_(capacity),
      tile_rows_(tile_rows),
      num_head_groups_(shape.num_heads_q * tile_rows / kBlockTileRows) {
  tiles_[1] = {static_cast<int32_t>(shape.seqlen_q), tile_rows, 0};
  tiles_[0] = tiles_[1];
  if (forward) {
    tiles_[0] = {tiles_[1].num_rows, forward->shape.block_m, forward->shape.anew_every};
    gathers_ = forward->gathers;
  }
  keys_rest_ = may_rest && capacity.block_size % kKeyTileRows == 0 && capacity.passes != AttnPasses::kForward;
  if (capacity_.max_slices == 0) capacity_.max_slices = capacity_.max_documents;
  constexpr int64_t kMost = int64_t{1} << 28;
  require(0 < capacity_.max_slices && capacity_.max_slices <= kMost,
          "MaskBuffer: max_slices must be positive and at most {} (got max_slices={})", kMost, capacity_.max_slices);
  require(capacity.block_size > 0 && capacity.block_size % block_multiple() == 0,
          "MaskBuffer: blocks must be multiples of {} rows, the queries of a tile or {} keys (got block_size={})",
          block_multiple(), kGroupKeys, capacity.block_size);
  require(shape.seqlen_k % kGroupKeys == 0, "MaskBuffer: blocks must be of a multiple of {} keys (got seqlen_k={})",
          kGroupKeys, shape.seqlen_k);
  require(
      !capacity.deterministic,
      "MaskBuffer: blocks must not be of deterministic calls, since kernels that gather add gradients of keys in any "
      "order; a buffer without block_size, or a mask of its own, may be (got deterministic=true)");
  require(
      capacity.allow_fully_masked_rows,
      "MaskBuffer: blocks must be allowed rows that see no key, which kernels that gather find without a table (got "
      "allow_fully_masked_rows=false)");
  require(capacity.head_groups > 0 && shape.num_heads_kv % capacity.head_groups == 0,
          "MaskBuffer: head_groups must divide num_heads_kv (got head_groups={}, num_heads_kv={})",
          capacity.head_groups, shape.num_heads_kv);
  max_groups_ = capacity_.max_slices * (capacity.block_size / kGroupKeys);
  const auto all_tiles = [&](int pass) { return num_tiles(pass) * capacity.head_groups; };
  // Without gathering, each block may be a run of its own, in all tiles of its queries.
  max_runs_ = kBlockRunsPerTile * all_tiles(0);
  if (!gathers_) max_runs_ += capacity_.max_slices * tiles_[0].count(static_cast<int32_t>(capacity.block_size));
  max_masks_ = std::max(2, tile_rows / kGroupKeys) * all_tiles(1) + max_groups_ / 8;
  // A section lasts four times as long as its longest work tile where work tiles are alike.
  const auto section = [&](int pass, int64_t bytes_of_key, int64_t most) {
    const int64_t tiles = std::max<int64_t>(num_tiles(pass), 1);
    const int64_t balanced = (4 * int64_t{gpu.multiprocessors} + tiles - 1) / tiles;
    const int64_t wanted = std::max(fitting(shape, bytes_of_key, kept_in_l2(gpu), num_head_groups_), balanced);
    return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::min<int64_t>(most, num_head_groups_)));
  };
  sections_[0] = section(0, int64_t{2} * (shape.head_dim + shape.head_dim_v), num_head_groups_);
  // Sums that leave the cache are added at half the rate, which costs more than an uneven end.
  const int64_t bytes_with_sums = int64_t{2} * shape.head_dim * (2 + 4);
  sections_[1] = section(1, bytes_with_sums, fitting(shape, bytes_with_sums, gpu.l2_bytes, num_head_groups_));
  const int64_t forward_work_tiles = capacity.passes == AttnPasses::kBackward ? 0 : num_work_tiles(0);
  const bool gathers_backward = capacity.passes != AttnPasses::kForward && !keys_rest_;
  Offsets at;
  forward_work_tiles_ = at.take<MaskTile>(forward_work_tiles);
  work_tile_groups_ = at.take<int32_t>(forward_work_tiles);
  backward_work_tiles_ = at.take<GroupWorkTile>(gathers_backward ? num_work_tiles(1) : 0);
  runs_ = at.take<TileRange>(capacity.passes == AttnPasses::kBackward ? 0 : max_runs_);
  diagonal_masks_ = at.take<GroupMask>(gathers_backward ? kDiagonalMasks : 0);
  if (keys_rest_) {
    keys_ = KeyImage(shape, capacity_, gpu, at.end);
    at.end = keys_.end();
  }
  groups_ = at.take<int32_t>(max_groups_ + (keys_rest_ ? 0 : max_backward_groups()));
  at.take<GroupMask>(gathers_backward ? max_masks_ : 0);
  at.take<RowInterval>(keys_.max_intervals());
  bytes_ = round_up(at.end, kAlignment);
  require(std::max(num_work_tiles(0), num_work_tiles(1)) < (int64_t{1} << 31) - 65536 && bytes_ < size_t{1} << 33,
          "MaskBuffer: lists must stay below 8 GiB (got max_slices={}, block_size={}, {} bytes)", capacity_.max_slices,
          capacity.block_size, bytes_);
}

int64_t BlockImageLayout::block_multiple() const {
  return std::max({tile_rows_, kGroupKeys, static_cast<int>(tiles_[0].every), gathers_ ? 0 : kBlockStepKeys,
                   keys_rest_ ? kKeyTileRows : 0});
}

BlockMask BlockImageLayout::make(std::span<const AttnSlice> slices) const {
  const auto tiles_of = [&](const RegularTiles& tiles) {
    return build_tile_list(slices, shape_.seqlen_q, shape_.seqlen_k, {tiles.rows, kBlockStepKeys, false, tiles.every});
  };
  std::optional<GroupList> groups;
  const bool gathers_backward = capacity_.passes != AttnPasses::kForward && !keys_rest_;
  if (gathers_backward) groups = group_work_tiles(tiles_of(tiles_[1]), true);
  BlockMask mask;
  if (keys_rest_) mask.keys = keys_.make(slices);
  if (capacity_.passes != AttnPasses::kBackward) {
    mask.forward = gathers_ ? gather_all_runs(tiles_of(tiles_[0])) : gather_none(tiles_of(tiles_[0]));
  }
  const auto is_simple = [&](const MaskTile& work_tile) {
    return (!gathers_ || work_tile.run_end - work_tile.run_begin <= kBlockRunsPerTile) &&
           std::all_of(mask.forward.runs.begin() + work_tile.run_begin, mask.forward.runs.begin() + work_tile.run_end,
                       [](const TileRange& run) { return run.interval_begin < 0; });
  };
  require(
      (groups || !gathers_backward) && std::ranges::all_of(mask.forward.work_tiles, is_simple),
      "MaskBuffer::set: a mask of blocks must be such that tiles of {} queries see whole groups of {} keys, but for "
      "few (got one of {} slices)",
      tile_rows_, kGroupKeys, slices.size());
  if (groups) mask.backward = std::move(*groups);
  return mask;
}

void BlockImageLayout::check(std::span<const BlockMask> masks) const {
  require(masks.size() == static_cast<size_t>(capacity_.head_groups),
          "MaskBuffer::set: needs a mask for each of the buffer's head groups, {} (got {})", capacity_.head_groups,
          masks.size());
  int64_t forward = 0, backward = 0, num_masks = 0, runs = 0;
  for (const BlockMask& mask : masks) {
    forward += static_cast<int64_t>(mask.forward.groups.size());
    backward += static_cast<int64_t>(mask.backward.groups.size());
    num_masks += static_cast<int64_t>(mask.backward.masks.size());
    runs += static_cast<int64_t>(mask.forward.runs.size());
  }
  require(runs <= max_runs_ && forward <= max_groups_ && backward <= max_backward_groups() && num_masks <= max_masks_,
          "MaskBuffer::set: the mask must fit the buffer, a larger max_slices makes room (got {} groups of {} keys, "
          "room for {}, "
          "max_slices={})",
          std::max(forward, backward), kGroupKeys, forward > max_groups_ ? max_groups_ : max_backward_groups(),
          capacity_.max_slices);
  if (keys_rest_) keys_.check(keys_of(masks));
}

template <class Cost>
std::vector<BlockImageLayout::Place> BlockImageLayout::order(std::span<const BlockMask> masks, int pass,
                                                             const Cost& cost) const {
  const int section = sections_[pass];
  const int listed = listed_head_groups(), groups_per_mask = listed / static_cast<int>(masks.size());
  struct Key {
    int64_t cost = 0, row = 0;
    Place place;
  };
  std::vector<Place> places;
  std::vector<Key> keys;
  for (int begin = 0; begin < listed; begin += section) {
    keys.clear();
    for (int group = begin; group < std::min(begin + section, listed); ++group) {
      const BlockMask& mask = masks[static_cast<size_t>(group / groups_per_mask)];
      for (int64_t work_tile = 0; work_tile < num_tiles(pass); ++work_tile) {
        const auto [of_work_tile, row] = cost(mask, static_cast<size_t>(work_tile));
        keys.push_back({of_work_tile, row, {group, work_tile}});
      }
    }
    std::ranges::sort(keys, [](const Key& a, const Key& b) {
      if (a.cost != b.cost) return a.cost > b.cost;
      return a.row != b.row ? a.row < b.row : a.place.head_group < b.place.head_group;
    });
    for (const Key& key : keys) places.push_back(key.place);
  }
  return places;
}

size_t BlockImageLayout::write(std::byte* to, std::span<const BlockMask> masks) const {
  const int listed = listed_head_groups(), groups_per_mask = listed / static_cast<int>(masks.size());
  const auto array = [&]<class T>(size_t offset, T) { return reinterpret_cast<T*>(to + offset); };
  int32_t* const groups = array(groups_, int32_t{});
  const auto base = static_cast<int32_t>(groups_ / sizeof(int32_t));
  std::vector<int32_t> first_group[2];  // of each mask, in the image
  int32_t end = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (const BlockMask& mask : masks) {
      const std::vector<int32_t>& of_mask = pass == 0 ? mask.forward.groups : mask.backward.groups;
      first_group[pass].push_back(base + end);
      std::ranges::copy(of_mask, groups + end);
      end += static_cast<int32_t>(of_mask.size());
    }
  }
  const size_t masks_at = round_up(groups_ + static_cast<size_t>(end) * sizeof(int32_t), kAlignment);
  std::vector<int32_t> first_run;
  int32_t num_runs = 0;
  for (size_t m = 0; m < masks.size(); ++m) {
    first_run.push_back(num_runs);
    for (const TileRange& of_mask : masks[m].forward.runs) {
      TileRange& run = array(runs_, TileRange{})[num_runs++] = of_mask;
      if (run.group_begin >= 0) run.group_begin += first_group[0][m];
    }
  }
  std::vector<int32_t> first_mask;
  size_t bytes = masks_at;
  for (const BlockMask& mask : masks) {
    first_mask.push_back(static_cast<int32_t>(bytes / sizeof(GroupMask)));
    std::ranges::copy(mask.backward.masks, array(bytes, GroupMask{}));
    bytes += mask.backward.masks.size() * sizeof(GroupMask);
  }
  if (capacity_.passes != AttnPasses::kBackward) {
    const auto steps = [](const BlockMask& mask, size_t i) {
      const MaskTile& work_tile = mask.forward.work_tiles[i];
      return std::pair(work_tile_steps(work_tile, mask.forward.runs, kBlockStepKeys), int64_t{work_tile.row_begin});
    };
    MaskTile* work_tile = array(forward_work_tiles_, MaskTile{});
    int32_t* work_tile_group = array(work_tile_groups_, int32_t{});
    for (const Place& place : order(masks, 0, steps)) {
      const auto m = static_cast<size_t>(place.head_group / groups_per_mask);
      *work_tile = masks[m].forward.work_tiles[static_cast<size_t>(place.work_tile)];
      work_tile->run_begin += first_run[m];
      work_tile->run_end += first_run[m];
      ++work_tile;
      *work_tile_group++ = place.head_group;
    }
  }
  if (keys_rest_) {
    bytes = keys_.write(to, keys_of(masks), masks_at);
  } else if (capacity_.passes != AttnPasses::kForward) {
    const auto num_groups = [](const BlockMask& mask, size_t i) {
      const GroupWorkTile& work_tile = mask.backward.work_tiles[i];
      return std::pair(int64_t{work_tile.num_groups}, int64_t{work_tile.row_begin});
    };
    GroupWorkTile* work_tile = array(backward_work_tiles_, GroupWorkTile{});
    for (const Place& place : order(masks, 1, num_groups)) {
      const auto m = static_cast<size_t>(place.head_group / groups_per_mask);
      *work_tile = masks[m].backward.work_tiles[static_cast<size_t>(place.work_tile)];
      work_tile->group_begin += first_group[1][m];
      work_tile->mask_begin += first_mask[m];
      work_tile->head_group = listed > 1 ? place.head_group : -1;
      ++work_tile;
    }
  }
  return bytes;
}

}  // namespace tangram::schedule
