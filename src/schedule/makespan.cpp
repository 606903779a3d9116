// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/makespan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "schedule/multiprocessors.hpp"

namespace tangram::schedule {

double makespan(const Setting& in, const Dealing& how, const ItemCosts& costs, double enough) {
  const int group = in.shape.num_heads_q / in.shape.num_heads_kv;
  // In half steps, of which costs are multiples: of a piece beside its query tiles, by the number of pieces.
  const auto halves = [](double steps) { return static_cast<int64_t>(std::ceil(2 * steps)); };
  struct Piece {
    int64_t tile = 0;  // of the heads of a small piece; a large one has one more
    int64_t alone = 0, together = 0;
    bool is_even = true;  // all pieces are small
  };
  std::vector<Piece> piece_of(static_cast<size_t>(group) + 1);
  for (int pieces = 1; pieces <= group; ++pieces) {
    const double joins = pieces == 1 ? 0 : 1, joins_together = pieces == 1 ? 0 : 1 + 0.2 * (pieces - 2);
    piece_of[static_cast<size_t>(pieces)] = {2 * (group / pieces), halves(costs.item + joins * costs.join),
                                             halves(costs.item + joins_together * costs.join), group % pieces == 0};
  }
  int64_t longest = 0;
  for (const Extent& extent : in.extents.of_keys) longest = std::max(longest, extent.count);
  const double latest = in.arrives.empty() ? 0 : *std::max_element(in.arrives.begin(), in.arrives.end());
  const int64_t most_cost = std::max(piece_of.back().together, piece_of[1].alone);
  CountedMultiprocessors machine(in.gpu.multiprocessors, 2 * longest * group + most_cost + halves(latest));
  const auto enough_halves = static_cast<int64_t>(std::min(std::ceil(2 * enough), 1e18));
  deal_runs(in.extents, in.shape.num_heads_kv, how, [&](size_t i, int first, int last, int pieces) {
    if (machine.end() > enough_halves) return;
    const Extent& extent = in.extents.of_keys[i];
    int count = last - first;
    if (extent.count == 0) {  // one piece a head
      count = (last + pieces - 1) / pieces - (first + pieces - 1) / pieces;
      pieces = 1;
    }
    const Piece& piece = piece_of[static_cast<size_t>(pieces)];
    const int64_t steps = extent.count * piece.tile + (how.together == 0 ? piece.together : piece.alone);
    const int64_t arrives = in.arrives.empty() ? 0 : halves(in.arrives[i]);
    int large = 0;
    for (int number = first; !piece.is_even && number < last; ++number) {
      const int heads =
          first_head_of_piece(group, pieces, number % pieces + 1) - first_head_of_piece(group, pieces, number % pieces);
      if (2 * heads > piece.tile) ++large;
    }
    machine.run(steps, count - large, arrives);
    if (large > 0) machine.run(steps + 2 * extent.count, large, arrives);
  });
  return static_cast<double>(machine.end()) / 2;
}

double least_makespan(const Setting& in, const ItemCosts& costs) {
  const double items = static_cast<double>(in.extents.of_keys.size()) * in.shape.num_heads_kv;
  return (even_steps(in) + items * costs.item / in.gpu.multiprocessors) * (1 - 1e-9);  // sums are rounded
}

double longest_item(const Setting& in, const Dealing& how, const ItemCosts& costs) {
  if (how.most_steps > 0) return costs.item;  // in how many pieces it is depends
  int64_t longest = 0;
  for (const Extent& extent : in.extents.of_keys) longest = std::max(longest, extent.count);
  const int heads = in.shape.num_heads_q / in.shape.num_heads_kv / how.pieces;
  return static_cast<double>(longest * heads) + costs.item;
}

double even_steps(const Setting& in) {
  double sum = 0;
  for (const Extent& extent : in.extents.of_keys) sum += static_cast<double>(extent.count);
  return sum * in.shape.num_heads_q / in.gpu.multiprocessors;
}

}  // namespace tangram::schedule
