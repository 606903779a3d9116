// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tile schedules: head splits and order of the work tiles of a backward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/extents.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::schedule {

/// Whether `group` query heads of a K/V head have no equal head splits of two heads or more: 5, 7 and other primes.
/// Then head splits may differ by one head.
inline bool is_cut_unevenly(int group) {
  for (int divisor = 2; divisor * divisor <= group; ++divisor) {
    if (group % divisor == 0) return false;
  }
  return group > 3;
}

/// Whether the `group` query heads of a K/V head can be cut into `head_splits`.
inline bool can_cut(int group, int head_splits) {
  return group % head_splits == 0 || (is_cut_unevenly(group) && 2 * head_splits <= group);
}

/// First of `group` heads in head split number `head_split`, which ends where the next one begins.
inline int first_head_of_split(int group, int head_splits, int head_split) { return group * head_split / head_splits; }

/// How the work tiles are cut and scheduled. Every work tile is cut into `head_splits` by query heads. Head
/// splits of all KV heads, in the order of the heads, are scheduled in sections of `heads_in_l2` splits (0: all), one
/// section after the other. Within a section the order is `Extents::order`. The last splits decide how evenly the
/// multiprocessors end. The last section may have more of them (`last_wave_heads`), and splits by length may shrink
/// towards the end (`guided_divisor`).
struct TileSchedule {
  int head_splits = 1;
  int heads_in_l2 = 0;
  int last_wave_heads = 0;
  bool by_document = false;  ///< schedules groups of work tiles that share queries one after the other
  /// Max steps per head split; 0: no limit. Otherwise a work tile has as few head splits as that needs (at most
  /// `head_splits`). All splits of a work tile are scheduled together, the longest first, and `heads_in_l2` counts KV
  /// heads.
  int max_steps = 0;
  /// With max_steps: unless 0, splits of a section may be longer, up to the remaining steps divided by this (guided
  /// scheduling). So few work tiles are cut before the end.
  int guided_divisor = 0;
  bool heads_innermost = false;  ///< as in Walk

  friend bool operator==(const TileSchedule&, const TileSchedule&) = default;
};

/// The fastest of a few candidates (tile_schedule_candidates.hpp) by a simulation of the multiprocessors, times the
/// candidate's cost factor. `spread`: how unequal the work tiles at one query tile are (extents.hpp).
/// `arrives`: steps after which the keys of a tile are ready, by index into of_keys; empty: ready from the start. Then
/// order_by_readiness becomes the order of `extents` if that is faster than waiting. `deterministic`: for calls in
/// which additions happen in scheduled order.
TileSchedule choose_tile_schedule(Extents& extents, double spread, const AttnShape& shape, const GpuModel& gpu,
                                  std::span<const double> arrives = {}, bool deterministic = false);

/// The tiles of `order` in the order in which `num_sms` multiprocessors take them. Each takes the longest tile whose
/// keys are ready or, if there is none, the one whose keys are ready next. `arrives`: as in
/// choose_tile_schedule.
std::vector<size_t> order_by_readiness(const Extents& extents, const AttnShape& shape, int num_sms, TileSchedule how,
                                       std::span<const double> arrives);

/// Number of head splits, at most `most`, of a work tile of `steps` so that each has at most `max_steps`.
inline int head_splits_for(int64_t max_steps, int64_t steps, int most) {
  int head_splits = 1;
  while (head_splits < most && (steps > max_steps * head_splits || !can_cut(most, head_splits))) ++head_splits;
  return head_splits;
}

/// Calls visit(index into of_keys, first, last, pieces) in scheduled order. Head splits [first, last) of this key tile
/// are scheduled one after the other, counted over all KV heads: split p of head h is number h * pieces + p. Pieces of
/// a work tile come in order, and all query heads see the key tiles in the same order, but with guided_divisor.
template <typename Visit>
void for_each_tile_span(const Extents& extents, int num_heads_kv, const TileSchedule& how, const Visit& visit) {
  const std::vector<size_t>& order = how.by_document ? extents.by_group : extents.order;
  const auto visit_groups = [&](const auto& visit_group) {
    size_t begin = 0;
    for (const size_t end : extents.group_ends) {
      visit_group(begin, end);
      begin = end;
    }
  };
  // Tiles [first, last) of the order, in sections.
  const auto visit_tiles = [&](size_t first, size_t last, int head_splits, int heads_in_l2, int last_wave_heads) {
    const int all = num_heads_kv * head_splits;
    if (heads_in_l2 == 0) heads_in_l2 = all;
    for (int begin = 0, end = 0; begin < all; begin = end) {
      end = all - begin <= std::max(heads_in_l2, last_wave_heads)
                ? all
                : std::min(begin + heads_in_l2, all - last_wave_heads);
      for (size_t at = first; at < last; ++at) visit(order[at], begin, end, head_splits);
    }
  };
  // Schedule in head splits by length.
  struct Tile {
    size_t at, i;
    int head_splits;
    int64_t steps;
  };
  std::vector<Tile> tiles;
  const auto cut_by_length = [&](size_t first, size_t last, int64_t max_steps) {
    tiles.clear();
    for (size_t at = first; at < last; ++at) {
      const int64_t steps = extents.of_keys[order[at]].count * how.head_splits;
      const int head_splits = head_splits_for(max_steps, steps, how.head_splits);
      tiles.push_back({at, order[at], head_splits, steps / head_splits});
    }
    const auto before = [](const Tile& a, const Tile& b) {
      return a.steps != b.steps ? a.steps > b.steps : a.at < b.at;
    };
    if (!std::is_sorted(tiles.begin(), tiles.end(), before)) std::sort(tiles.begin(), tiles.end(), before);
  };
  int64_t rest = 0;  // steps of a head and all that follow, where that matters
  const auto visit_by_length = [&](size_t first, size_t last) {
    int64_t longest = 0, sum = 0;
    for (size_t at = first; how.guided_divisor > 0 && at < last; ++at) {
      const int64_t steps = extents.of_keys[order[at]].count * how.head_splits;
      longest = std::max(longest, steps);
      sum += steps;
    }
    const int heads_in_l2 = how.heads_in_l2 == 0 ? num_heads_kv : how.heads_in_l2;
    int64_t max_steps = 0;
    for (int begin = 0; begin < num_heads_kv; begin += heads_in_l2) {
      const int end = std::min(begin + heads_in_l2, num_heads_kv);
      const int64_t now = how.guided_divisor == 0
                              ? how.max_steps
                              : std::max<int64_t>(how.max_steps, std::min(longest, rest / how.guided_divisor));
      if (now != max_steps) cut_by_length(first, last, now);
      max_steps = now;
      rest -= sum * (end - begin);
      for (const Tile& tile : tiles) visit(tile.i, begin * tile.head_splits, end * tile.head_splits, tile.head_splits);
    }
  };
  if (how.guided_divisor > 0) {
    for (const Extent& extent : extents.of_keys) rest += extent.count;
    rest *= int64_t{how.head_splits} * num_heads_kv;
  }
  if (how.max_steps > 0) return how.by_document ? visit_groups(visit_by_length) : visit_by_length(0, order.size());
  if (how.by_document) {
    return visit_groups(
        [&](size_t first, size_t last) { visit_tiles(first, last, how.head_splits, how.heads_in_l2, 0); });
  }
  visit_tiles(0, order.size(), how.head_splits, how.heads_in_l2, how.last_wave_heads);
}

/// Visits work tiles in order: visit(index into of_keys, KV head, head split, head splits of this work tile). A work
/// tile without steps has one head split.
template <typename Visit>
void for_each_work_tile(const Extents& extents, int num_heads_kv, const TileSchedule& how, const Visit& visit) {
  for_each_tile_span(extents, num_heads_kv, how, [&](size_t i, int first, int last, int head_splits) {
    int head = first / head_splits, head_split = first % head_splits;
    const bool is_empty = extents.of_keys[i].count == 0;
    for (int number = first; number < last; ++number) {
      if (!is_empty) {
        visit(i, head, head_split, head_splits);
      } else if (head_split == 0) {
        visit(i, head, 0, 1);
      }
      if (++head_split == head_splits) ++head, head_split = 0;
    }
  });
}

/// At least as many as for_each_work_tile() visits.
inline size_t most_work_tiles(const Extents& extents, int num_heads_kv, const TileSchedule& how) {
  const auto heads = static_cast<size_t>(num_heads_kv);
  size_t head_splits = 0;  // of a head
  if (how.max_steps > 0) {
    for (const Extent& extent : extents.of_keys) {
      head_splits +=
          static_cast<size_t>(head_splits_for(how.max_steps, extent.count * how.head_splits, how.head_splits));
    }
  } else {
    head_splits = extents.of_keys.size() * static_cast<size_t>(how.head_splits);
  }
  return head_splits * heads;
}

}  // namespace tangram::schedule
