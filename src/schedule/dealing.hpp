// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// In which pieces and in which order the items of a backward pass are dealt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "machine/gpu_model.hpp"
#include "schedule/extents.hpp"
#include "tangram/attn_shape.hpp"

namespace tangram::schedule {

/// How the items are cut and dealt. Every item is cut into `pieces` by query heads. The pieces of all KV heads, in the
/// order of the heads, are dealt in sections of `together` of them (0: all), one section after the other; in a section
/// in the order of `Extents::order`. What is dealt last decides how evenly the multiprocessors end:
/// the last section may have more of them (`joint`), and the last `tail_tiles` key tiles in the order may come after
/// all others, in more pieces.
struct Dealing {
  int pieces = 1;
  int together = 0;
  int joint = 0;
  int tail_tiles = 0;
  int tail_pieces = 1;
  int tail_together = 0;
  bool grouped = false;  ///< one group of items that share queries after the other, each by itself dealt so
  /// Unless 0: an item is in as few pieces as leave each of them at most so many steps (`pieces`: the most of them),
  /// all pieces of an item are dealt together, the longest pieces first, and `together` counts KV heads.
  int most_steps = 0;
  bool heads_inside = false;  ///< as in Walk

  friend bool operator==(const Dealing&, const Dealing&) = default;
};

/// The fastest of a few forms (dealing_forms.hpp) by a simulation of the multiprocessors, times how slow a form is.
/// `arrives`: when the keys of a tile are there, in steps, by index into of_keys, or empty: from the start. Then
/// order_by_arrival becomes the order of `extents` if that is faster than to wait where tiles are.
/// `deterministic`: for calls in which additions happen in the order of dealing.
Dealing choose_dealing(Extents& extents, double spread, const AttnShape& shape, const GpuModel& gpu,
                       std::span<const double> arrives = {}, bool deterministic = false);

/// The tiles of `order` in the order in which `num_sms` multiprocessors take them when each takes the longest
/// one whose keys are there, or if there is none, the one whose keys come next. `arrives`: when the keys of a tile are
/// there, in steps, by index into of_keys.
std::vector<size_t> order_by_arrival(const Extents& extents, const AttnShape& shape, int num_sms, Dealing how,
                                     std::span<const double> arrives);

/// In how many pieces, of at most `most`, an item of `steps` is for each of them to have at most `most_steps`.
inline int pieces_of_at_most(int64_t most_steps, int64_t steps, int most) {
  int pieces = 1;
  while (pieces < most && (most % pieces != 0 || steps > most_steps * pieces)) ++pieces;
  return pieces;
}

/// Calls visit(index into of_keys, first, last, pieces) in the order of dealing: the pieces [first, last) of this key
/// tile are dealt one after the other, counted over all KV heads: piece p of head h is number h * pieces + p. Pieces of
/// an item come in order, and all query heads see the key tiles in the same order.
template <typename Visit>
void deal_runs(const Extents& extents, int num_heads_kv, const Dealing& how, const Visit& visit) {
  const std::vector<size_t>& order = how.grouped ? extents.by_group : extents.order;
  const auto visit_groups = [&](const auto& visit_group) {
    size_t begin = 0;
    for (const size_t end : extents.group_ends) {
      visit_group(begin, end);
      begin = end;
    }
  };
  // Tiles [first, last) of the order, in sections.
  const auto visit_tiles = [&](size_t first, size_t last, int pieces, int together, int joint) {
    const int all = num_heads_kv * pieces;
    if (together == 0) together = all;
    for (int begin = 0, end = 0; begin < all; begin = end) {
      end = all - begin <= std::max(together, joint) ? all : std::min(begin + together, all - joint);
      for (size_t at = first; at < last; ++at) visit(order[at], begin, end, pieces);
    }
  };
  // The same in pieces by length.
  const auto visit_by_length = [&](size_t first, size_t last) {
    struct Tile {
      size_t i;
      int pieces;
      int64_t steps;
    };
    std::vector<Tile> tiles;
    for (size_t at = first; at < last; ++at) {
      const int64_t steps = extents.of_keys[order[at]].count * how.pieces;
      const int pieces = pieces_of_at_most(how.most_steps, steps, how.pieces);
      tiles.push_back({order[at], pieces, steps / pieces});
    }
    std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.steps > b.steps; });
    const int together = how.together == 0 ? num_heads_kv : how.together;
    for (int begin = 0; begin < num_heads_kv; begin += together) {
      const int end = std::min(begin + together, num_heads_kv);
      for (const Tile& tile : tiles) visit(tile.i, begin * tile.pieces, end * tile.pieces, tile.pieces);
    }
  };
  if (how.most_steps > 0) return how.grouped ? visit_groups(visit_by_length) : visit_by_length(0, order.size());
  if (how.grouped) {
    return visit_groups([&](size_t first, size_t last) { visit_tiles(first, last, how.pieces, how.together, 0); });
  }
  const size_t tail = order.size() - static_cast<size_t>(how.tail_tiles);
  visit_tiles(0, tail, how.pieces, how.together, how.joint);
  visit_tiles(tail, order.size(), how.tail_pieces, how.tail_together, 0);
}

/// The same item by item: visit(index into of_keys, KV head, piece, pieces of this item); one without steps is one
/// piece.
template <typename Visit>
void deal(const Extents& extents, int num_heads_kv, const Dealing& how, const Visit& visit) {
  deal_runs(extents, num_heads_kv, how, [&](size_t i, int first, int last, int pieces) {
    for (int number = first; number < last; ++number) {
      const int head = number / pieces, piece = number % pieces;
      if (extents.of_keys[i].count > 0) {
        visit(i, head, piece, pieces);
      } else if (piece == 0) {
        visit(i, head, 0, 1);
      }
    }
  });
}

}  // namespace tangram::schedule
