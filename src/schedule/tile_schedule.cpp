// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/tile_schedule.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "schedule/makespan.hpp"
#include "schedule/tile_schedule_candidates.hpp"
#include "schedule/tile_schedule_heuristic.hpp"

namespace tangram::schedule {
namespace {

struct Choice {
  TileSchedule how;
  double cost;  // steps
};

/// Schedule choice for the given order of tiles.
Choice choose_form(const Setting& in, double spread, bool deterministic) {
  const ScheduleClass kind = kind_of(in.extents, spread);
  const bool same_begin = choose_direction(in.extents).same_begin;
  const double even = even_steps(in);
  const bool uneven = is_cut_unevenly(in.shape.num_heads_q / in.shape.num_heads_kv);
  const auto slowness_of = [&](const ScheduleCandidate& form) {
    // Nested work tiles of five or seven heads want sections of what the cache holds; others were measured.
    if (uneven && kind == ScheduleClass::kNested && form.share_of_rest > 0) return 0.0;
    return (deterministic ? form.deterministic : form.cost_factor)[static_cast<size_t>(kind)];
  };
  // Candidates from the quickest on. None is better than its cost factor times the common work, and a simulation stops
  // once it takes longer than the best so far. Of equal ones the first in kScheduleCandidates is meant.
  std::array<const ScheduleCandidate*, kScheduleCandidates.size()> forms;
  size_t count = 0;
  for (const ScheduleCandidate& form : kScheduleCandidates) {
    if (slowness_of(form) > 0) forms[count++] = &form;
  }
  std::sort(forms.begin(), forms.begin() + static_cast<std::ptrdiff_t>(count),
            [&](const ScheduleCandidate* a, const ScheduleCandidate* b) {
              return std::pair(slowness_of(*a), a) < std::pair(slowness_of(*b), b);
            });
  const double least = least_makespan(in);
  Choice best{{}, std::numeric_limits<double>::infinity()};
  const ScheduleCandidate* of_best = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const ScheduleCandidate& form = *forms[i];
    const double cost_factor = slowness_of(form);
    if (cost_factor * least > best.cost) break;
    std::optional<double> played;
    std::optional<TileSchedule> how = schedule_of(form, in.extents, in.shape, in.gpu, even, &played);
    if (!how || (deterministic && waits_in_sections(form, *how, in.shape, even))) continue;
    const std::optional<Bounds> bounds = makespan_bounds(in, *how);
    if (cost_factor * (bounds ? bounds->least : longest_work_tile(in, *how)) > best.cost) continue;
    how->heads_innermost = walks_heads_inside(*how, same_begin, spread, in.shape);
    // The first one need not be played where all others must take longer. Its makespan is then not needed.
    const double others = i + 1 < count ? slowness_of(*forms[i + 1]) * least : std::numeric_limits<double>::infinity();
    if (of_best == nullptr && bounds && cost_factor * bounds->most < others) return {*how, others};
    const double steps = played && in.arrives.empty() ? *played : makespan(in, *how, {}, best.cost / cost_factor);
    const double cost = cost_factor * steps;
    if (cost > best.cost || (cost == best.cost && of_best < &form)) continue;
    best = {*how, cost};
    of_best = &form;
  }
  return best;
}

/// Schedule of work tiles that visit scattered tiles: head by head, in head splits that stay together. With small
/// heads: all query heads of a tile in turn, since a step moves little then, and from one place. CostFactors as in
/// kScheduleCandidates; unevenness limits in docs/devlog/2026-11-26-block-masks.md. Nothing if heads cannot be split
/// so, or if too few work tiles end too unevenly.
std::optional<TileSchedule> choose_scattered(const Setting& in, const Visits& visits) {
  const bool small = scatters_heads_inside(in.shape.head_dim);
  const int group = in.shape.num_heads_q / in.shape.num_heads_kv;
  const auto [fewest, most] =
      scattered_pieces(in.shape.seqlen_q, in.shape.head_dim, group, in.gpu.l2_bytes, in.gpu.has_slow_memory());
  const bool unequal = are_unequal(visits.long_work_tiles, visits.work_tiles);
  const bool cuts =
      most > fewest && (unequal || visits.long_work_tiles == 0);  // few long ones are better cut by length
  const double uneven = !cuts ? 1.1 : unequal ? 1.5 : 1.25;
  std::optional<TileSchedule> best;
  double least = uneven * even_steps(in), cost_factor = 1;
  const int first = cuts && unequal ? most : fewest, last = std::max(cuts ? most : fewest, 2 * fewest);
  for (int head_splits = first; group % head_splits == 0 && head_splits <= last; head_splits *= 2) {
    const TileSchedule how{.head_splits = head_splits, .heads_in_l2 = 1, .heads_innermost = small};
    const double cost = cost_factor * makespan(in, how, {}, least / cost_factor);
    cost_factor *= small ? 0.995 : 1.008;
    if (cost >= least) continue;
    best = how;
    least = cost;
  }
  return best;
}

/// The work tiles of each group in the order of all work tiles.
void order_groups(Extents& extents) {
  std::vector<size_t> place(extents.order.size());
  for (size_t at = 0; at < extents.order.size(); ++at) place[extents.order[at]] = at;
  auto begin = extents.by_group.begin();
  for (const size_t end_at : extents.group_ends) {
    const auto end = extents.by_group.begin() + static_cast<std::ptrdiff_t>(end_at);
    std::sort(begin, end, [&](size_t a, size_t b) { return place[a] < place[b]; });
    begin = end;
  }
}

}  // namespace

TileSchedule choose_tile_schedule(Extents& extents, double spread, const AttnShape& shape, const GpuModel& gpu,
                                  std::span<const double> arrives, bool deterministic) {
  const Visits visits = visits_of(extents);
  if (!deterministic && arrives.empty() && is_scattered(visits.tiles, visits.between)) {
    if (const std::optional<TileSchedule> how = choose_scattered({extents, shape, gpu, arrives}, visits)) return *how;
  }
  const Choice as_is = choose_form({extents, shape, gpu, arrives}, spread, deterministic);
  if (arrives.empty()) return as_is.how;
  Extents late = extents;
  const TileSchedule whole;
  late.order =
      order_by_readiness(extents, shape, gpu.multiprocessors, as_is.how.max_steps > 0 ? whole : as_is.how, arrives);
  order_groups(late);
  const Choice by_readiness = choose_form({late, shape, gpu, arrives}, spread, deterministic);
  if (by_readiness.cost >= as_is.cost) return as_is.how;
  extents = std::move(late);
  return by_readiness.how;
}

std::vector<size_t> order_by_readiness(const Extents& extents, const AttnShape& shape, int num_sms, TileSchedule how,
                                       std::span<const double> arrives) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < num_sms; ++i) free_at.push(0);
  const int heads = shape.num_heads_q / shape.num_heads_kv / how.head_splits;
  const int copies =
      how.heads_in_l2 == 0 ? shape.num_heads_kv * how.head_splits : how.heads_in_l2;  // of a tile, scheduled together
  std::vector<size_t> waiting = extents.order, order;
  while (!waiting.empty()) {
    const double now = free_at.top();
    auto next = std::find_if(waiting.begin(), waiting.end(), [&](size_t i) { return arrives[i] <= now; });
    if (next == waiting.end()) {
      next =
          std::min_element(waiting.begin(), waiting.end(), [&](size_t a, size_t b) { return arrives[a] < arrives[b]; });
    }
    const size_t tile = *next;
    waiting.erase(next);
    order.push_back(tile);
    for (int i = 0; i < copies; ++i) {
      const double begin = std::max(free_at.top(), arrives[tile]);
      free_at.pop();
      free_at.push(begin + static_cast<double>(extents.of_keys[tile].count * heads) + WorkTileCosts().work_tile);
    }
  }
  return order;
}

}  // namespace tangram::schedule
