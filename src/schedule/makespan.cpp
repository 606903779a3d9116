// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/makespan.hpp"

#include <cmath>

#include "schedule/multiprocessors.hpp"

namespace tangram::schedule {
namespace {

constexpr double kJoinCost = 1.5;  // of a piece that joins one other, in steps

/// As head_bytes, of the queries that the longest item visits.
double item_bytes(const Extents& extents, const AttnShape& shape) {
  return 8.0 * longest_rows(extents) * shape.head_dim;
}

/// Of pieces of `heads` query heads in sections of few heads.
double section_penalty(const Setting& in, double uneven, int heads, int together) {
  if (together > 1) return 1 + uneven * 0.02 * (heads * together - 1);
  // One head in a piece means twice the joins of two. Without drift there is nothing to gain, and the neighbours of a
  // head would wait for each other in deterministic calls.
  const double bytes = item_bytes(in.extents, in.shape) * heads;
  const double too_large = std::clamp(std::log2(bytes / (cached_bytes(in.gpu) / 4)), 0.0, 1.0);
  const double several = 0.012 + 0.0035 * heads + 0.001 * (heads * heads - 4) * too_large;
  return 1 + uneven * (heads == 1 ? 0.03 : several) + std::max(0.0, 1 - 4 * uneven) * 0.03;
}

}  // namespace

double steps_of(const Extent& item, const AttnShape& shape, int pieces, bool together) {
  const double joins = pieces == 1 ? 0 : together ? 1 + 0.2 * (pieces - 2) : 1;
  return static_cast<double>(item.count * (shape.num_heads_q / shape.num_heads_kv / pieces)) + kItemCost +
         joins * kJoinCost;
}

double makespan(const Setting& in, const Dealing& how) {
  Multiprocessors machine(in.gpu.multiprocessors);
  const std::vector<size_t>& order = in.extents.order;
  std::vector<char> is_tail(order.size(), 0);
  for (size_t at = order.size() - static_cast<size_t>(how.tail_tiles); at < order.size(); ++at) is_tail[order[at]] = 1;
  deal(in.extents, in.shape.num_heads_kv, how, [&](size_t i, int, int, int pieces) {
    const bool together = (is_tail[i] != 0 ? how.tail_together : how.together) == 0;
    machine.run(steps_of(in.extents.of_keys[i], in.shape, pieces, together), in.arrives.empty() ? 0 : in.arrives[i]);
  });
  return machine.end();
}

double head_bytes(const AttnShape& shape) { return 8.0 * static_cast<double>(shape.seqlen_q) * shape.head_dim; }

double longest_rows(const Extents& extents) {
  int64_t longest = 0;
  for (const Extent& extent : extents.of_keys) longest = std::max(longest, extent.count);
  return 64.0 * static_cast<double>(longest);
}

bool drifts_slowly(const Setting& in) {
  return item_bytes(in.extents, in.shape) * in.shape.num_heads_q >= 4 * cached_bytes(in.gpu);
}

double cache_penalty(const Setting& in, double spread, const Dealing& how) {
  const auto& [extents, shape, gpu, arrives] = in;
  const double uneven = std::clamp((spread - 0.05) / 0.15, 0.0, 1.0);
  if (how.together > 0) {
    const int heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
    const double penalty = section_penalty(in, uneven, heads, how.together);
    // In the order of their lengths, tiles of many documents lie between two that share queries.
    const double groups = static_cast<double>(extents.group_ends.size());
    return how.grouped ? penalty * std::clamp(1 - 0.003 * (groups - 8), 0.9, 1.0) : penalty;
  }
  const double too_large = std::clamp(std::log2(head_bytes(shape) * shape.num_heads_q / cached_bytes(gpu)), 0.0, 1.0);
  const double longest = longest_rows(extents) / static_cast<double>(std::max<int64_t>(shape.seqlen_q, 1));
  const double drift = uneven * (how.pieces == 1 ? 0.25 : 0.03 + 0.3 * (1 - std::min(1.0, longest)));
  // Equal items drift apart, too, when they are long.
  const double slow_drift = drifts_slowly(in) ? 0.02 : 0;
  return 1 + too_large * (drift + slow_drift + 0.02 * (how.pieces - 1));
}

}  // namespace tangram::schedule
