// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// In which pieces and in which order the items of a backward pass are dealt, and in which order each walks its steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attn/sm90/backward/params.hpp"
#include "tangram/attention.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90::backward {

/// How the items are cut and dealt. Every item is cut into `pieces` by query heads. The pieces of all KV heads, in the
/// order of the heads, are dealt in sections of `together` of them (0: all), one section after the other; in a section
/// longest item first, ties in the order of the list. What is dealt last decides how evenly the multiprocessors end:
/// the last section may have more of them (`joint`), and the last `tail_tiles` key tiles in the order may come after
/// all others, in more pieces.
struct Dealing {
  int pieces = 1;
  int together = 0;
  int joint = 0;
  int tail_tiles = 0;
  int tail_pieces = 1;
  int tail_together = 0;

  friend bool operator==(const Dealing&, const Dealing&) = default;
};

/// Query tiles of one head that an item visits: in all, the first one and the one after the last.
struct Extent {
  int64_t count = 0;
  int64_t first = 0;
  int64_t end = 0;
};

/// Extents of the items of a transposed tile list, in the order of their keys, and the indices of these items in it.
struct Extents {
  std::vector<Extent> of_keys;
  std::vector<size_t> item;
  std::vector<size_t> longest_first;  ///< indices into of_keys
};
Extents measure_extents(const TileList& tiles, const std::vector<RunTiles>& run_tiles);

/// How unequal the items are that meet at one query tile: how far they lie from the median (root mean square, so that
/// few long items count), as a share of their mean length, over sampled tiles. 0 for full masks, windows and full
/// documents, about 0.25 for causal ones.
double length_spread(const TileList& tiles, const std::vector<RunTiles>& run_tiles, int64_t num_q_tiles);

/// The fastest dealing by a simulation on `num_sms` multiprocessors with penalties for what leaves the L2 cache.
Dealing choose_dealing(const Extents& extents, double spread, const AttnShape& shape, int num_sms);

/// The tiles of `longest_first` in the order in which `num_sms` multiprocessors take them when each takes the longest
/// one whose keys are there, or if there is none, the one whose keys come next. `arrives`: when the keys of a tile are
/// there, in steps, by index into of_keys.
std::vector<size_t> order_by_arrival(const Extents& extents, const AttnShape& shape, int num_sms, Dealing how,
                                     const std::vector<double>& arrives);

/// The direction in which an item meets those dealt before it where they have already been, and whether neighbours
/// begin at the same tile.
struct Direction {
  bool descending = false;
  bool same_begin = false;
};
Direction choose_direction(const Extents& extents);

/// Calls visit(index into of_keys, KV head, piece, pieces of this item) in the order of dealing; an item without steps
/// is one piece. Pieces of an item come in order, and all query heads see the key tiles in the same order.
template <typename Visit>
void deal(const Extents& extents, int num_heads_kv, const Dealing& how, const Visit& visit) {
  const std::vector<size_t>& order = extents.longest_first;
  const auto visit_piece = [&](size_t i, int head, int piece, int pieces) {
    if (extents.of_keys[i].count > 0) {
      visit(i, head, piece, pieces);
    } else if (piece == 0) {
      visit(i, head, 0, 1);
    }
  };
  // Tiles [first, last) of the order, in sections.
  const auto visit_tiles = [&](size_t first, size_t last, int pieces, int together, int joint) {
    const int all = num_heads_kv * pieces;
    if (together == 0) together = all;
    for (int begin = 0, end = 0; begin < all; begin = end) {
      end = all - begin <= std::max(together, joint) ? all : std::min(begin + together, all - joint);
      for (size_t at = first; at < last; ++at) {
        for (int i = begin; i < end; ++i) visit_piece(order[at], i / pieces, i % pieces, pieces);
      }
    }
  };
  const size_t tail = order.size() - static_cast<size_t>(how.tail_tiles);
  visit_tiles(0, tail, how.pieces, how.together, how.joint);
  visit_tiles(tail, order.size(), how.tail_pieces, how.tail_together, 0);
}

}  // namespace tangram::sm90::backward
