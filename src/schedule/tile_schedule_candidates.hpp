// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The few schedule candidates that are tried on a mask, and how much longer each takes than its makespan says.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "schedule/makespan.hpp"
#include "schedule/tile_schedule.hpp"

namespace tangram::schedule {

/// Class of a mask that decides its best schedule, beside its makespan: the data that multiprocessors find in the L2
/// cache.
enum class ScheduleClass {
  kEqual,  ///< work tiles that meet at a query tile are about as long (length_spread): they stay together by themselves
  kNested,  ///< one group of unequal work tiles, as of a causal mask
  kPacked,  ///< several groups of them, as of packed causal documents
};
inline constexpr int kNumScheduleClasses = 3;

constexpr double kUnequalSpread = 0.1;  // of length_spread: 0 to 0.1 for full masks and windows, 0.25 for causal ones

inline ScheduleClass kind_of(const Extents& extents, double spread) {
  if (spread < kUnequalSpread) return ScheduleClass::kEqual;
  return extents.group_ends.size() > 1 ? ScheduleClass::kPacked : ScheduleClass::kNested;
}

/// Cost factors by ScheduleClass: measured time of a candidate relative to its makespan, compared with other
/// candidates; 0: not tried on such masks.
using CostFactors = std::array<double, kNumScheduleClasses>;

struct ScheduleCandidate {
  int head_splits = 1;
  int heads_in_l2 = 0;
  int last_wave_heads = 0;
  bool by_document = false;
  /// Candidate of search_l2_tile_schedule: `head_splits` and `heads_in_l2` follow. Measured on nested work tiles.
  bool cached = false;
  double most_share = 0;     ///< unless 0: max_steps, as a share of what every multiprocessor does; ignores head_splits
  double share_of_rest = 0;  ///< with most_share, unless 0: pieces up to this share of what is left for each of them
  CostFactors cost_factor = {};  ///< of calls whose additions have no order
  CostFactors deterministic = {};
};

/// Candidates with the factors that benchmarks/schedule/fit_tile_schedules prints for
/// docs/results/data/tile_schedules_tried_h200.csv and of tile_schedules_h200.csv, checked by
/// tests/schedule/tile_schedule_fit_test.cpp. Only the ratios of candidates within a column count. To try another
/// candidate, add it here with cost factor 1, measure (time_tile_schedules), fit. clang-format off
inline constexpr std::array kScheduleCandidates{
    ScheduleCandidate{.head_splits = 1, .cost_factor = {1, 1, 1}, .deterministic = {1, 1, 1}},
    ScheduleCandidate{.head_splits = 2, .cost_factor = {0, 0, 0.92}, .deterministic = {0, 1, 0.89}},
    ScheduleCandidate{.head_splits = 4, .cost_factor = {0, 0.85, 0}, .deterministic = {0, 0.965, 0}},
    ScheduleCandidate{.heads_in_l2 = 4, .deterministic = {0.94, 0, 0}},
    ScheduleCandidate{.head_splits = 2, .heads_in_l2 = 1, .last_wave_heads = 4, .deterministic = {0, 0, 0.8}},
    ScheduleCandidate{.cached = true, .cost_factor = {0, 0.75, 0}, .deterministic = {0, 0.8, 0}},
    ScheduleCandidate{.by_document = true, .deterministic = {0, 0, 0.825}},
    ScheduleCandidate{.heads_in_l2 = 2, .by_document = true, .deterministic = {0, 0.92, 0.775}},
    ScheduleCandidate{.head_splits = 2,
                      .heads_in_l2 = 1,
                      .by_document = true,
                      .cost_factor = {0.97, 0, 0},
                      .deterministic = {0.945, 0, 0.785}},
    ScheduleCandidate{.heads_in_l2 = 1, .most_share = 0.1, .share_of_rest = 1, .cost_factor = {0, 0, 0.865}},
    ScheduleCandidate{.heads_in_l2 = 1,
                      .by_document = true,
                      .most_share = 0.1,
                      .share_of_rest = 0.7,
                      .cost_factor = {0.95, 0.785, 0}},
    ScheduleCandidate{.heads_in_l2 = 1, .by_document = true, .most_share = 0.34, .cost_factor = {0, 0, 0.84}},
};
// clang-format on

/// The order of a work tile's steps: where neighbours begin at the same tile, all heads of a tile before the next tile.
/// Pieces of unequally many heads would be at different heads before long.
inline bool walks_heads_inside(const TileSchedule& how, bool same_begin, double spread, const AttnShape& shape) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  return same_begin && (how.heads_in_l2 == 1 || spread < kUnequalSpread || group % how.head_splits != 0);
}

/// Whether there are few query heads per K/V head. In a section all work tiles of a document begin at once and with the
/// same query tile. In deterministic calls each waits there for its turn, once for each of its heads and predecessors.
/// A work tile of one head waits as long as it works. So deterministic calls with fewer heads a work tile are not
/// scheduled in sections.
inline bool has_few_heads(const AttnShape& shape) { return shape.num_heads_q < 4 * shape.num_heads_kv; }

/// Whether deterministic calls avoid the schedule. They avoid sections of few heads, and sections by the cache unless
/// there are more than four and each lasts 150 steps. Rates relative to all heads at once: 0.95 to 1.0 if avoided, else
/// 0.96 to 1.11. `even`: as in schedule_of.
inline bool waits_in_sections(const ScheduleCandidate& form, const TileSchedule& how, const AttnShape& shape,
                              double even) {
  if (how.heads_in_l2 > 0 && has_few_heads(shape)) return true;
  if (!form.cached || is_cut_unevenly(shape.num_heads_q / shape.num_heads_kv)) return false;
  if (how.heads_in_l2 == 0) return how.head_splits <= 2 || how.head_splits == 4;  // which are forms of their own
  const int sections = (shape.num_heads_kv * how.head_splits + how.heads_in_l2 - 1) / how.heads_in_l2;
  return sections <= 4 || even < 150 * sections;
}

/// The first of the schedules with the least makespan, keys being there. `steps`: that makespan, if it was simulated.
struct Quickest {
  TileSchedule how;
  std::optional<double> steps;
};
inline Quickest quickest(const Setting& in, std::span<const TileSchedule> of) {
  if (of.size() == 1) return {of.front(), std::nullopt};
  struct Offer {
    const TileSchedule* how;
    Bounds bounds;
  };
  std::vector<Offer> offers;
  for (const TileSchedule& how : of) {
    offers.push_back({&how, makespan_bounds(in, how).value_or(Bounds{0, std::numeric_limits<double>::infinity()})});
  }
  std::stable_sort(offers.begin(), offers.end(),
                   [](const Offer& a, const Offer& b) { return a.bounds.least < b.bounds.least; });
  if (offers[0].bounds.most < offers[1].bounds.least) return {*offers[0].how, std::nullopt};
  const TileSchedule* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [how, bounds] : offers) {
    if (bounds.least > least) break;
    const double steps = makespan(in, *how, {}, least);
    if (steps < least || (steps == least && how < best)) best = how, least = steps;
  }
  return {*best, least};
}

/// Sections of as many query heads as have queries, dout and dq sums in the cache, up to a quarter more if that makes
/// them even. Two or more splits, which end more evenly, each of two heads or more, of which fewer join. Takes the
/// candidate that ends first. Whole work tiles where neither can be. Uneven pieces are as many as there can be: the
/// fewer heads they have, the longer they stay together.
inline Quickest search_l2_tile_schedule(const Setting& in) {
  constexpr double kLarger = 1.25;
  const int group = in.shape.num_heads_q / in.shape.num_heads_kv;
  const double rows = static_cast<double>(std::max<int64_t>(1, in.shape.seqlen_q));
  const double heads = static_cast<double>(in.gpu.l2_bytes) * 1.1 * kLarger / (8.0 * rows * in.shape.head_dim);
  const bool unevenly = is_cut_unevenly(group);
  std::vector<TileSchedule> offers;
  const auto offer = [&](int head_splits, int heads_in_l2) {
    // Uneven pieces are never scheduled without sections.
    if (heads_in_l2 == in.shape.num_heads_kv * head_splits && !unevenly) heads_in_l2 = 0;
    offers.push_back({.head_splits = head_splits, .heads_in_l2 = heads_in_l2});
  };
  for (int head_splits = std::max(group / 2, 1); head_splits > 0; --head_splits) {
    if (!can_cut(group, head_splits)) continue;
    // With fewer splits, only candidates of which one split fits into L2.
    if (!offers.empty() && (head_splits == 1 || unevenly || heads * head_splits < group)) break;
    const int all = in.shape.num_heads_kv * head_splits;
    const auto fitting = [&](double so_many) {
      return static_cast<int>(std::clamp(so_many * head_splits / group, 1.0, static_cast<double>(all)));
    };
    // Sections whose last is about as long as the others.
    const auto even = [&](int sections) { return (all + sections - 1) / sections; };
    const int most = fitting(heads), largest = even((all + most - 1) / most);
    offer(head_splits, largest);
    int other = most;  // that divides all
    while (all % other != 0) --other;
    if (unevenly) {  // as near as can be to what fits
      const int fits = fitting(heads / kLarger);
      other = even(std::max(1, (2 * all + fits) / (2 * fits)));
    }
    if (other != largest) offer(head_splits, other);
  }
  return quickest(in, offers);
}

/// The schedule of a candidate, without heads_innermost; none if the heads of a group cannot be cut so. `even`: steps
/// of each multiprocessor if all did as much. `steps`: its makespan without awaited keys, if it was simulated to find
/// the schedule.
inline std::optional<TileSchedule> schedule_of(const ScheduleCandidate& form, const Extents& extents,
                                               const AttnShape& shape, const GpuModel& gpu, double even,
                                               std::optional<double>* steps = nullptr) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  TileSchedule how{.head_splits = form.head_splits,
                   .heads_in_l2 = form.heads_in_l2,
                   .last_wave_heads = form.last_wave_heads,
                   .by_document = form.by_document};
  if (form.most_share > 0) {
    how.head_splits = group;
    how.max_steps = std::max(1, static_cast<int>(form.most_share * even));
    if (form.share_of_rest > 0) {
      how.guided_divisor = std::max(1, static_cast<int>(gpu.multiprocessors / form.share_of_rest));
    }
  }
  if (form.cached) {
    const Quickest cached = search_l2_tile_schedule({extents, shape, gpu, {}});
    how = cached.how;
    if (steps != nullptr) *steps = cached.steps;
  }
  // Uneven pieces drift apart unless they are of few heads that are scheduled together.
  if (!can_cut(group, how.head_splits) || (group % how.head_splits != 0 && how.heads_in_l2 == 0)) return std::nullopt;
  return how;
}

}  // namespace tangram::schedule
