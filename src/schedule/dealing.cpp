// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/dealing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "schedule/cache_simulation.hpp"
#include "schedule/makespan.hpp"
#include "schedule/multiprocessors.hpp"

namespace tangram::schedule {
namespace {

constexpr int kMaxTailItems = 8;      // how finely the end is cut, in items a multiprocessor
constexpr double kOtherEnd = 0.96;    // of the steps without: less is not worth it, least of all in deterministic calls
constexpr double kMaxWaves = 5;       // of items, up to which it matters much which are the last
constexpr double kWorthwhile = 0.99;  // of the steps of what is known to do well: measurements differ by more than 1 %

struct Choice {
  Dealing how;
  double steps;
};

/// Of a dealing one head after the other: the end dealt as one section, two or as many as the cache holds, so that the
/// last items to begin are short ones; and how many steps that takes.
Choice with_joint_end(const Setting& in, const Dealing& how) {
  const double sections = in.shape.num_heads_kv * how.pieces;
  const double bytes = head_bytes(in.shape) * in.shape.num_heads_q / sections;
  const double most = std::clamp(cached_bytes(in.gpu) / bytes, 2.0, std::max(2.0, sections));
  Choice best{how, makespan(in, how)};
  Dealing joint = how;
  for (joint.joint = 2; joint.joint <= most; joint.joint *= 2) {
    const double steps = makespan(in, joint);
    if (steps < 0.995 * best.steps) best = {joint, steps};
  }
  return best;
}

int empty_tiles(const Extents& extents) {
  return static_cast<int>(
      std::count_if(extents.of_keys.begin(), extents.of_keys.end(), [](const Extent& e) { return e.count == 0; }));
}

/// What each multiprocessor would do if all did as much.
double even_steps(const Setting& in) {
  double sum = 0;
  for (const Extent& extent : in.extents.of_keys) sum += steps_of(extent, in.shape, 1, true);
  return sum * in.shape.num_heads_kv / in.gpu.multiprocessors;
}

/// All heads at once, with the shortest tiles in other pieces than the long ones: in more they end more evenly, in
/// fewer they join less.
Choice with_other_end(const Setting& in, int pieces) {
  constexpr int kParts = 16;
  const int group = in.shape.num_heads_q / in.shape.num_heads_kv;
  const int empty = empty_tiles(in.extents), tiles = static_cast<int>(in.extents.order.size()) - empty;
  Dealing other{.pieces = pieces};
  const double plain = makespan(in, other);
  Choice best{other, plain};
  if (kOtherEnd * plain < even_steps(in)) return best;
  for (other.tail_pieces = 1; other.tail_pieces <= std::min(group, 2 * pieces); ++other.tail_pieces) {
    if (group % other.tail_pieces != 0 || other.tail_pieces == pieces) continue;
    for (int part = 1; part < kParts; ++part) {
      other.tail_tiles = tiles * part / kParts + empty;
      const double steps = makespan(in, other);
      if (steps < kOtherEnd * plain && steps < best.steps) best = {other, steps};
    }
  }
  return best;
}

/// The same with the last tiles in smaller pieces, and how many steps that takes. Equal items on 132 multiprocessors
/// leave up to a whole wave's share of them without work at the end.
Choice with_cut_end(const Setting& in, const Dealing& how) {
  const auto& [extents, shape, gpu, arrives] = in;
  const int group = shape.num_heads_q / shape.num_heads_kv;
  const std::vector<size_t>& order = extents.order;
  const int empty = empty_tiles(extents);
  const int tiles = static_cast<int>(order.size()) - empty;
  // Pieces of items that see most queries share those of one head, if pieces of other heads do not come in between.
  const int together = longest_rows(extents) * 2 > static_cast<double>(shape.seqlen_q) ? 1 : 0;
  const auto run = [&](Multiprocessors& machine, int first, int last, int pieces, bool all_together) {
    for (int at = first; at < last; ++at) {
      const double steps = steps_of(extents.of_keys[order[static_cast<size_t>(at)]], shape, pieces, all_together);
      for (int i = 0; i < shape.num_heads_kv * pieces; ++i) machine.run(steps);
    }
  };
  // Small pieces of all heads at once share fewer queries: not too many of them.
  const auto most = [&](int pieces) {
    return std::min(tiles * how.pieces / pieces, kMaxTailItems * gpu.multiprocessors / shape.num_heads_kv / pieces);
  };
  const int begin = tiles - most(how.pieces * 2);  // what comes before is dealt alike in any case
  Multiprocessors before(gpu.multiprocessors);
  run(before, 0, begin, how.pieces, true);
  Multiprocessors uncut = before;
  run(uncut, begin, tiles, how.pieces, true);
  Choice best{how, uncut.end()};
  for (int pieces = how.pieces * 2; pieces <= group; pieces *= 2) {
    if (group % pieces != 0) continue;
    for (int cut = 1; cut <= most(pieces); cut += (cut + 3) / 4) {
      Multiprocessors machine = before;
      run(machine, begin, tiles - cut, how.pieces, true);
      run(machine, tiles - cut, tiles, pieces, together == 0);
      if (machine.end() >= 0.995 * best.steps) continue;
      best.how.tail_tiles = cut + empty;
      best.how.tail_pieces = pieces;
      best.how.tail_together = together;
      best.steps = machine.end();
    }
  }
  if (!arrives.empty()) best.steps = makespan(in, best.how);
  return best;
}

/// Dealings whose order keeps most in the cache or whose end is even, with their steps, fewest first.
std::vector<Choice> candidates(const Setting& in) {
  const auto& [extents, shape, gpu, arrives] = in;
  const int group = shape.num_heads_q / shape.num_heads_kv;
  std::vector<Choice> result;
  const auto add = [&](const Dealing& how) { result.push_back({how, makespan(in, how)}); };
  const bool several = extents.group_ends.size() > 1;
  for (int pieces = 1; pieces <= group; ++pieces) {
    if (group % pieces != 0) continue;
    for (int together = 0; together < shape.num_heads_kv * pieces; together = std::max(1, together * 2)) {
      add({.pieces = pieces, .together = together});
    }
    for (int joint = 2; joint <= shape.num_heads_kv * pieces; joint *= 2) {
      add({.pieces = pieces, .together = 1, .joint = joint});
    }
    if (several) add({.pieces = pieces, .together = 1, .grouped = true});
  }
  Dealing cut = with_cut_end(in, {}).how;
  for (cut.tail_together = 0; cut.tail_together <= 1 && cut.tail_tiles > 0; ++cut.tail_together) add(cut);
  const double even = even_steps(in);
  std::vector<int> pieces_before;
  for (const double share : {1.0, 0.7, 0.5, 0.4, 0.33, 0.25, 0.2}) {
    Dealing how{.pieces = group, .most_steps = std::max(1, static_cast<int>(share * even))};
    std::vector<int> pieces;
    for (const Extent& extent : extents.of_keys) {
      pieces.push_back(pieces_of_at_most(how.most_steps, extent.count * group, group));
    }
    if (std::exchange(pieces_before, pieces) == pieces) continue;
    for (how.together = 0; how.together < shape.num_heads_kv; how.together = std::max(1, how.together * 2)) {
      how.grouped = false;
      add(how);
      how.grouped = true;
      if (several) add(how);
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const Choice& a, const Choice& b) { return a.steps < b.steps; });
  return result;
}

/// By a simulation of the cache the fastest of them, where it is faster than `known`, and its steps.
Choice choose_by_cache(const Setting& in, const Dealing& known) {
  const Direction direction = choose_direction(in.extents);
  const bool neighbours_begin_together = direction.same_begin;
  CacheSimulation cache(in, direction.descending);
  const auto simulated = [&](Choice choice, bool inside) {
    choice.how.heads_inside = inside;
    choice.steps *= missed_penalty(cache.missed_share(choice.how, inside));
    return choice;
  };
  const Choice before = simulated({known, makespan(in, known)}, known.heads_inside);
  Choice best{known, kWorthwhile * before.steps};
  const auto consider = [&](const Choice& choice) {
    if (choice.steps < best.steps) best = choice;
  };
  for (const Choice& candidate : candidates(in)) {
    if (candidate.steps >= best.steps) break;  // there is no penalty below 1
    consider(simulated(candidate, neighbours_begin_together && candidate.how.together == 1));
  }
  if (best.how == known) return before;
  if (neighbours_begin_together) consider(simulated({best.how, makespan(in, best.how)}, !best.how.heads_inside));
  return best;
}

/// By penalties for what probably leaves the cache.
Choice choose_by_penalties(const Setting& in, double spread) {
  const auto& [extents, shape, gpu, arrives] = in;
  const int group = shape.num_heads_q / shape.num_heads_kv;
  Choice best{{}, std::numeric_limits<double>::infinity()};
  const auto consider = [&](const Choice& choice) {
    const double cost = choice.steps * cache_penalty(in, spread, choice.how);
    if (cost < best.steps) best = {choice.how, cost};
  };
  const auto consider_as_is = [&](const Dealing& how) { consider({how, makespan(in, how)}); };
  for (int pieces = 1; pieces <= group; ++pieces) {
    if (group % pieces != 0) continue;
    for (const int together : {0, 1}) consider_as_is({.pieces = pieces, .together = together});
  }
  if (drifts_slowly(in) && shape.num_heads_kv > 2) consider_as_is({.together = 2});
  const Dealing even = best.how;
  consider(with_cut_end(in, {.together = even.together == 2 ? 2 : 0}));
  for (const int pieces : {even.pieces, even.pieces / 2}) {
    if (even.together != 1 || pieces == 0 || group % pieces != 0) continue;
    consider(with_joint_end(in, {.pieces = pieces, .together = 1}));
  }
  const double waves = static_cast<double>(extents.order.size()) * shape.num_heads_kv / gpu.multiprocessors;
  for (int pieces = 2; pieces <= std::min(group, 4) && waves <= kMaxWaves; ++pieces) {
    if (group % pieces == 0) consider(with_other_end(in, pieces));
  }
  if (best.how.together == 1 && extents.group_ends.size() > 1) {
    for (const int pieces : {1, 2}) {
      if (group % pieces == 0) consider_as_is({.pieces = pieces, .together = 1, .grouped = true});
    }
  }
  best.how.heads_inside = (best.how.together == 1 || spread < 0.1) && choose_direction(extents).same_begin;
  return best;
}

/// Of the order of tiles as it is. The steps are those of the simulation times the penalty.
Choice choose_dealing_of(const Setting& in, double spread, bool deterministic) {
  const Choice choice = choose_by_penalties(in, spread);
  if (deterministic || !is_cache_simulated(in)) return choice;
  return choose_by_cache(in, choice.how);
}

}  // namespace

Dealing choose_dealing(Extents& extents, double spread, const AttnShape& shape, const GpuModel& gpu,
                       std::span<const double> arrives, bool deterministic) {
  const Choice as_is = choose_dealing_of({extents, shape, gpu, arrives}, spread, deterministic);
  if (arrives.empty()) return as_is.how;
  Extents late = extents;
  const Dealing whole;
  late.order =
      order_by_arrival(extents, shape, gpu.multiprocessors, as_is.how.most_steps > 0 ? whole : as_is.how, arrives);
  const Choice by_arrival = choose_dealing_of({late, shape, gpu, arrives}, spread, deterministic);
  if (by_arrival.steps >= as_is.steps) return as_is.how;
  extents.order = std::move(late.order);
  return by_arrival.how;
}

std::vector<size_t> order_by_arrival(const Extents& extents, const AttnShape& shape, int num_sms, Dealing how,
                                     std::span<const double> arrives) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < num_sms; ++i) free_at.push(0);
  const int heads = shape.num_heads_q / shape.num_heads_kv / how.pieces;
  const int copies = how.together == 0 ? shape.num_heads_kv * how.pieces : how.together;  // of a tile, dealt together
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
      free_at.push(begin + static_cast<double>(extents.of_keys[tile].count * heads) + kItemCost);
    }
  }
  return order;
}

}  // namespace tangram::schedule
