// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// In which pieces and in which order the items of a backward pass are dealt, and in which order each walks its steps.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/sm90/backward/params.hpp"
#include "tangram/attention.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90::backward {

/// How the items are cut and dealt: every item in `pieces` by query heads; one KV head after the other, piece by piece,
/// or all at once. Inside such a section longest first, ties in the order of the list.
struct Dealing {
  int pieces = 1;
  bool by_head = false;
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

/// Calls visit(index into of_keys, KV head, piece) in the order of dealing; an item without steps is one piece.
template <typename Visit>
void deal(const Extents& extents, int num_heads_kv, Dealing how, const Visit& visit) {
  if (how.by_head) {
    for (int head = 0; head < num_heads_kv; ++head) {
      for (int piece = 0; piece < how.pieces; ++piece) {
        for (const size_t i : extents.longest_first) {
          if (piece == 0 || extents.of_keys[i].count > 0) visit(i, head, piece);
        }
      }
    }
    return;
  }
  for (const size_t i : extents.longest_first) {
    const int pieces = extents.of_keys[i].count > 0 ? how.pieces : 1;
    for (int head = 0; head < num_heads_kv; ++head) {
      for (int piece = 0; piece < pieces; ++piece) visit(i, head, piece);
    }
  }
}

}  // namespace tangram::sm90::backward
