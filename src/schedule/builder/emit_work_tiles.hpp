// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Destinations of the counts of tiles, and the schedule of a backward pass's work tiles. The rule is that of
// heuristic_tile_schedule() (tile_schedule_heuristic.hpp), without simulation. By one team.
#pragma once

#include <cstdint>

#include "schedule/builder/places.hpp"
#include "schedule/tile_schedule_heuristic.hpp"

namespace tangram::schedule::builder {

/// Refuses a mask whose lists have no room, and makes what was counted that of a mask which shows nothing.
template <class Team>
TANGRAM_HOST_DEVICE void check_capacity(const Team& team, const Build& build) {
  State& state = *build.state;
  for (int index = 0; index < 2; ++index) {
    if (!(index == 0 ? build.has_forward : build.has_backward)) continue;
    const Pass& pass = build.passes[index];
    const int32_t num_tiles = state.num_tiles[index];
    int64_t mine = 0;
    for_each(team, num_tiles, [&](int32_t tile) { mine += pass.first_run[tile]; });
    const int64_t num_runs = team.sum(mine);
    const auto num_head_splits = static_cast<int64_t>(state.num_head_splits[index]);
    if (team.rank() == 0 && !state.refused && (num_runs > pass.max_runs || num_head_splits > pass.max_pieces)) {
      // Where there was no room for pieces, runs were not counted: of three pieces two may be of one run.
      const int64_t needed = num_runs > pass.max_runs ? num_runs : num_head_splits / 2;
      refuse(state, index == 0 ? Problem::kForwardRuns : Problem::kBackwardRuns, 0, needed, pass.max_runs);
    }
    team.sync();
  }
  if (!state.refused) return;
  for (int index = 0; index < 2; ++index) {
    if (!(index == 0 ? build.has_forward : build.has_backward)) continue;
    const Pass& pass = build.passes[index];
    for_each(team, state.num_tiles[index], [&](int32_t tile) {
      pass.tiles[tile] = {};
      pass.first_run[tile] = pass.first_interval[tile] = pass.costs[tile] = 0;
    });
  }
  team.sync();
}

/// Writes to `group_place` the place of each group of work tiles that share queries, groups with the longest work tile
/// first. Writes to `inside` how many groups begin before each query tile. Returns the number of groups.
template <class Team>
TANGRAM_HOST_DEVICE int32_t place_groups(const Team& team, const Build& build) {
  const State& state = *build.state;
  const int32_t num_q_tiles = state.num_q_tiles, num_work_tiles = state.num_tiles[1];
  const Tile* const tiles = build.passes[1].tiles;
  int32_t* const inside = build.inside;
  for_each(team, num_q_tiles + 1, [&](int32_t t) { inside[t] = build.is_begin[t] = build.longest[t] = 0; });
  team.sync();
  for_each(team, num_work_tiles, [&](int32_t i) {
    if (tiles[i].count == 0) return;
    team.add(&inside[tiles[i].first], 1);
    team.add(&inside[tiles[i].end - 1], -1);
    team.raise(&build.is_begin[tiles[i].first], 1);
  });
  team.sync();
  // Then of each query tile, how many work tiles reach across its begin: where none does, a group begins.
  sums_before(team, inside, num_q_tiles);
  for_each(team, num_q_tiles, [&](int32_t t) { inside[t] = build.is_begin[t] != 0 && inside[t] == 0; });
  team.sync();
  const int32_t num_groups = sums_before(team, inside, num_q_tiles);
  for_each(team, num_work_tiles, [&](int32_t i) {
    if (tiles[i].count > 0) team.raise(&build.longest[inside[tiles[i].first + 1] - 1], tiles[i].count);
  });
  team.sync();
  for_each(team, num_groups, [&](int32_t g) {
    int32_t before = 0;
    for (int32_t other = 0; other < num_groups; ++other) {
      const int32_t more = build.longest[other] - build.longest[g];
      before += more > 0 || (more == 0 && other < g);
    }
    build.group_place[g] = before;
  });
  team.sync();
  return num_groups;
}

/// Walk that choose_direction chooses; heads_innermost: whether neighbours begin at the same tile.
template <class Team>
TANGRAM_HOST_DEVICE Walk direction_of(const Team& team, const Tile* tiles, int32_t count) {
  int64_t ascending = 0, descending = 0, pairs = 0, same_first = 0, same_end = 0;
  for_each(team, count - 1, [&](int32_t i) {
    Tile before = tiles[i], after = tiles[i + 1];
    if (least(before.end, after.end) <= most(before.first, after.first)) return;
    if (after.count > before.count) {
      const Tile longer = after;
      after = before;
      before = longer;
    }
    ascending += most(0, after.first - before.first);
    descending += most(0, before.end - after.end);
    ++pairs;
    same_first += before.first == after.first;
    same_end += before.end == after.end;
  });
  ascending = team.sum(ascending), descending = team.sum(descending), pairs = team.sum(pairs);
  same_first = team.sum(same_first), same_end = team.sum(same_end);
  const bool down = descending <= ascending;
  return {down, (down ? same_end : same_first) * 2 > pairs};
}

/// Runs and intervals get their places, work tiles of the backward pass their shares, and the image its facts.
template <class Team>
TANGRAM_HOST_DEVICE void place_lists(const Team& team, const Build& build) {
  State& state = *build.state;
  check_capacity(team, build);
  for (int index = 0; index < 2; ++index) {
    if (!(index == 0 ? build.has_forward : build.has_backward)) continue;
    const Pass& pass = build.passes[index];
    sums_before(team, pass.first_run, state.num_tiles[index]);
    const int32_t num_intervals = sums_before(team, pass.first_interval, state.num_tiles[index]);
    if (team.rank() == 0 && index == 0) state.num_intervals = num_intervals;
  }
  if (!build.has_backward || state.num_tiles[1] == 0) {
    if (team.rank() == 0) state.num_work_tiles = 0, *build.mask_info = {};
    return;
  }
  const int32_t num_tiles = state.num_tiles[1];
  const Tile* const tiles = build.passes[1].tiles;
  const int32_t num_groups = place_groups(team, build);
  int64_t visits = 0, num_seen = 0, between = 0, longest = 0;
  for_each(team, num_tiles, [&](int32_t i) {
    visits += tiles[i].count, num_seen += tiles[i].count > 0;
    longest = most<int64_t>(longest, tiles[i].count);
    if (tiles[i].count > 0) between += tiles[i].end - tiles[i].first;
  });
  visits = team.sum(visits), num_seen = team.sum(num_seen), between = team.sum(between);
  longest = team.greatest(longest);
  int64_t long_work_tiles = 0;
  for_each(team, num_tiles, [&](int32_t i) { long_work_tiles += is_long(tiles[i].count, num_seen, visits); });
  long_work_tiles = team.sum(long_work_tiles);
  const Walk direction = direction_of(team, tiles, num_tiles);
  const int heads = build.num_heads_q / build.num_heads_kv;
  const int32_t max_steps = most_steps_by_rule(static_cast<double>(visits), build.num_heads_q, build.multiprocessors);
  const bool scattered = is_scattered(visits, between);
  bool heads_innermost = direction.heads_innermost;
  Sections sections;
  const bool schedules_scattered = scattered && !build.deterministic;
  if (schedules_scattered) {
    sections = scattered_sections(longest, long_work_tiles, num_seen, visits, build.num_heads_q, heads,
                                  build.multiprocessors, build.scattered_pieces, build.heads_innermost);
  }
  if (sections.head_splits > 0) {
    heads_innermost = build.heads_innermost;
  } else if (!schedules_scattered && num_groups == 1 && is_nested(longest, num_seen, visits)) {
    sections = build.cached;
    heads_innermost = heads_innermost && sections.heads_in_l2 == 1;
  }
  const bool in_sections = sections.head_splits > 0, in_turn = !in_sections && build.deterministic && num_groups > 1;
  int64_t num_head_splits = 0;
  for_each(team, num_tiles, [&](int32_t i) {
    const int64_t steps = int64_t{tiles[i].count} * heads;
    const bool is_seen = tiles[i].count > 0;
    const int head_splits = in_sections ? (is_seen ? sections.head_splits : 1)
                            : in_turn   ? 1
                                        : pieces_by_rule(max_steps, steps, heads);
    const int32_t behind = in_sections ? 1 : num_groups;
    const int32_t group = !is_seen ? behind : in_sections ? 0 : build.group_place[build.inside[tiles[i].first + 1] - 1];
    build.shares[i] = {group, static_cast<int32_t>(steps / head_splits), head_splits};
    num_head_splits += head_splits;
  });
  num_head_splits = team.sum(num_head_splits);
  if (team.rank() != 0) return;
  state.num_work_tiles = static_cast<int32_t>(num_head_splits) * build.num_heads_kv;
  state.sections = sections;
  state.heads_together = in_turn ? heads_in_turn(build.num_heads_q, build.num_heads_kv) : 1;
  *build.mask_info = {state.num_work_tiles,
                      {direction.descending, heads_innermost},
                      zeroes_sums(direction.heads_innermost, scattered, visits, state.num_q_tiles)};
}

}  // namespace tangram::schedule::builder
