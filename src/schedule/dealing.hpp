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

/// Whether groups of so many query heads have no equal pieces of two heads or more: 5, 7 and other primes. Then pieces
/// may differ by one head.
inline bool is_cut_unevenly(int group) {
  for (int divisor = 2; divisor * divisor <= group; ++divisor) {
    if (group % divisor == 0) return false;
  }
  return group > 3;
}

/// Whether the query heads of a K/V head can be cut into so many pieces.
inline bool can_cut(int group, int pieces) {
  return group % pieces == 0 || (is_cut_unevenly(group) && 2 * pieces <= group);
}

/// The first of `group` heads that belongs to a piece, whose last one ends where the next piece begins.
inline int first_head_of_piece(int group, int pieces, int piece) { return group * piece / pieces; }

/// How the items are cut and dealt. Every item is cut into `pieces` by query heads. The pieces of all KV heads, in the
/// order of the heads, are dealt in sections of `together` of them (0: all), one section after the other; in a section
/// in the order of `Extents::order`. What is dealt last decides how evenly the multiprocessors end: the last section
/// may have more of them (`joint`), and pieces by length may grow shorter towards the end (`parts_of_rest`).
struct Dealing {
  int pieces = 1;
  int together = 0;
  int joint = 0;
  bool grouped = false;  ///< one group of items that share queries after the other, each by itself dealt so
  /// Unless 0: an item is in as few pieces as leave each of them at most so many steps (`pieces`: the most of them),
  /// all pieces of an item are dealt together, the longest pieces first, and `together` counts KV heads.
  int most_steps = 0;
  /// With most_steps, unless 0: pieces may be longer than that, by section, as long as one part in so many of all steps
  /// that are still to be dealt. So few items are cut before the end.
  int parts_of_rest = 0;
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
  while (pieces < most && (steps > most_steps * pieces || !can_cut(most, pieces))) ++pieces;
  return pieces;
}

/// Calls visit(index into of_keys, first, last, pieces) in the order of dealing: the pieces [first, last) of this key
/// tile are dealt one after the other, counted over all KV heads: piece p of head h is number h * pieces + p. Pieces of
/// an item come in order, and all query heads see the key tiles in the same order, but with parts_of_rest.
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
  struct Tile {
    size_t at, i;
    int pieces;
    int64_t steps;
  };
  std::vector<Tile> tiles;
  const auto cut_by_length = [&](size_t first, size_t last, int64_t most_steps) {
    tiles.clear();
    for (size_t at = first; at < last; ++at) {
      const int64_t steps = extents.of_keys[order[at]].count * how.pieces;
      const int pieces = pieces_of_at_most(most_steps, steps, how.pieces);
      tiles.push_back({at, order[at], pieces, steps / pieces});
    }
    const auto before = [](const Tile& a, const Tile& b) {
      return a.steps != b.steps ? a.steps > b.steps : a.at < b.at;
    };
    if (!std::is_sorted(tiles.begin(), tiles.end(), before)) std::sort(tiles.begin(), tiles.end(), before);
  };
  int64_t rest = 0;  // steps of a head and all that follow, where that matters
  const auto visit_by_length = [&](size_t first, size_t last) {
    int64_t longest = 0, sum = 0;
    for (size_t at = first; how.parts_of_rest > 0 && at < last; ++at) {
      const int64_t steps = extents.of_keys[order[at]].count * how.pieces;
      longest = std::max(longest, steps);
      sum += steps;
    }
    const int together = how.together == 0 ? num_heads_kv : how.together;
    int64_t most_steps = 0;
    for (int begin = 0; begin < num_heads_kv; begin += together) {
      const int end = std::min(begin + together, num_heads_kv);
      const int64_t now = how.parts_of_rest == 0
                              ? how.most_steps
                              : std::max<int64_t>(how.most_steps, std::min(longest, rest / how.parts_of_rest));
      if (now != most_steps) cut_by_length(first, last, now);
      most_steps = now;
      rest -= sum * (end - begin);
      for (const Tile& tile : tiles) visit(tile.i, begin * tile.pieces, end * tile.pieces, tile.pieces);
    }
  };
  if (how.parts_of_rest > 0) {
    for (const Extent& extent : extents.of_keys) rest += extent.count;
    rest *= int64_t{how.pieces} * num_heads_kv;
  }
  if (how.most_steps > 0) return how.grouped ? visit_groups(visit_by_length) : visit_by_length(0, order.size());
  if (how.grouped) {
    return visit_groups([&](size_t first, size_t last) { visit_tiles(first, last, how.pieces, how.together, 0); });
  }
  visit_tiles(0, order.size(), how.pieces, how.together, how.joint);
}

/// The same item by item: visit(index into of_keys, KV head, piece, pieces of this item); one without steps is one
/// piece.
template <typename Visit>
void deal(const Extents& extents, int num_heads_kv, const Dealing& how, const Visit& visit) {
  deal_runs(extents, num_heads_kv, how, [&](size_t i, int first, int last, int pieces) {
    int head = first / pieces, piece = first % pieces;
    const bool is_empty = extents.of_keys[i].count == 0;
    for (int number = first; number < last; ++number) {
      if (!is_empty) {
        visit(i, head, piece, pieces);
      } else if (piece == 0) {
        visit(i, head, 0, 1);
      }
      if (++piece == pieces) ++head, piece = 0;
    }
  });
}

/// At least as many as deal() visits.
inline size_t most_items(const Extents& extents, int num_heads_kv, const Dealing& how) {
  const auto heads = static_cast<size_t>(num_heads_kv);
  size_t pieces = 0;  // of a head
  if (how.most_steps > 0) {
    for (const Extent& extent : extents.of_keys) {
      pieces += static_cast<size_t>(pieces_of_at_most(how.most_steps, extent.count * how.pieces, how.pieces));
    }
  } else {
    pieces = extents.of_keys.size() * static_cast<size_t>(how.pieces);
  }
  return pieces * heads;
}

}  // namespace tangram::schedule
