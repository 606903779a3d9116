// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Turns of deterministic calls, as work_list.cpp counts them. A run adds to a query tile as number `turn`: the number
// of runs that come before it in the schedule and visit that tile. Where neighbouring tiles of a run have one turn they
// are a segment. The steps:
//
//   order_runs   a warp a key tile     runs of one head's work tiles, in the order of schedule and walk
//   count_turns  a warp a query tile   counts the segments of each run that begin there
//   place_turns  one team              places of the segments of each run
//   list_turns   a warp a query tile   lists the segments that begin there, by run
//   fill_turns   a warp a key tile     writes the segments of its runs in the order of the walk
//
// The first three come between place_lists() and the filling of the image: a mask whose turns exceed the capacity must
// become one that shows nothing. The others come after it.
#pragma once

#include <cstdint>

#include "schedule/builder/emit_work_tiles.hpp"
#include "schedule/builder/fill_image.hpp"
#include "schedule/builder/pack_tile.hpp"

namespace tangram::schedule::builder {

/// Whether the key tile `other` is scheduled before `at`, as ScheduledBefore has it.
TANGRAM_HOST_DEVICE inline bool is_scheduled_before(const Build& build, int32_t other, int32_t at) {
  const Share a = build.shares[other], b = build.shares[at];
  if (a.group != b.group) return a.group < b.group;
  const Tile* const tiles = build.passes[1].tiles;
  const int32_t longer_pieces = a.steps - b.steps, longer = tiles[other].count - tiles[at].count;
  return longer_pieces > 0 || (longer_pieces == 0 && (longer > 0 || (longer == 0 && other < at)));
}

/// Every head sees the key tiles scheduled in the same order, so runs are listed once.
template <class Team>
TANGRAM_HOST_DEVICE void order_runs(const Team& team, const TurnBuild& build, int32_t at) {
  const Pass& pass = build.passes[1];
  const int32_t num_tiles = build.state->num_tiles[1], num_q_tiles = build.state->num_q_tiles;
  if (at >= num_tiles) return;
  const auto runs_of = [&](int32_t tile) { return pass.first_run[tile + 1] - pass.first_run[tile]; };
  int64_t mine = 0;
  for_each(team, num_tiles, [&](int32_t other) {
    if (is_scheduled_before(build, other, at)) mine += runs_of(other);
  });
  const auto first = static_cast<int32_t>(team.sum(mine));
  if (team.rank() == 0) build.turns.first_scheduled[at] = first;
  const bool descending = build.mask_info->walk.descending;
  const int32_t num_runs = runs_of(at);
  const Tile tile = pass.tiles[at];
  for_each(team, num_runs, [&](int32_t r) {
    const Run run = run_of(pass, tile, r);
    const int32_t scheduled = first + (descending ? num_runs - 1 - r : r);
    build.turns.scheduled[scheduled] = {tile_of_row(build.q_begins, num_q_tiles, run.key_begin),
                                        tile_of_row(build.q_begins, num_q_tiles, run.key_end - 1) + 1};
    build.turns.first_segment[scheduled] = build.turns.num_listed[scheduled] = 0;
  });
}

/// Calls visit(scheduled, turn) for each run of which a segment begins at the query tile `at`, by some member of the
/// team.
template <class Team, class Visit>
TANGRAM_HOST_DEVICE void visit_segments(const Team& team, const TurnBuild& build, int32_t at, const Visit& visit) {
  if (at >= build.state->num_q_tiles) return;
  const int32_t num_runs = build.passes[1].first_run[build.state->num_tiles[1]];
  constexpr int32_t kAtOnce = 4;  // are read before the first is looked at: a team waits for memory so much less often
  int32_t here = 0, below = 0;    // how many runs so far visit this tile, and the one below
  for (int32_t begin = 0; begin < num_runs; begin += kAtOnce * team.size()) {
    AssignedRun runs[kAtOnce];
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t scheduled = begin + i * team.size() + team.rank();
      if (scheduled < num_runs) runs[i] = build.turns.scheduled[scheduled];
    }
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const AssignedRun run = runs[i];
      const bool visits = run.first <= at && at < run.end, visits_below = run.first < at && at <= run.end;
      int32_t more_here, more_below;
      const int32_t turn = here + team.count_before(visits, more_here);
      const int32_t turn_below = below + team.count_before(visits_below, more_below);
      if (visits && !(visits_below && turn == turn_below)) visit(begin + i * team.size() + team.rank(), turn);
      here += more_here, below += more_below;
    }
  }
}

template <class Team>
TANGRAM_HOST_DEVICE void count_turns(const Team& team, const TurnBuild& build, int32_t at) {
  visit_segments(team, build, at,
                 [&](int32_t scheduled, int32_t /*turn*/) { team.add(&build.turns.first_segment[scheduled], 1); });
}

/// Counts turns and places their segments. Also corrects the walk: heads are inside where work tiles begin alike,
/// however they are scheduled.
template <class Team>
TANGRAM_HOST_DEVICE void place_turns(const Team& team, const TurnBuild& build) {
  State& state = *build.state;
  if (state.num_tiles[1] == 0) return;
  const Turns& turns = build.turns;
  const int32_t num_runs = build.passes[1].first_run[state.num_tiles[1]];
  for_each(team, num_runs, [&](int32_t scheduled) { ++turns.first_segment[scheduled]; });  // what ends a run's segments
  team.sync();
  const int32_t num_segments = sums_before(team, turns.first_segment, num_runs);
  if (num_segments > turns.max_segments) {
    if (team.rank() == 0) refuse(state, Problem::kTurns, 0, num_segments, turns.max_segments);
    team.sync();
    place_lists(team, build);
    team.sync();
  }
  const Walk direction = direction_of(team, build.passes[1].tiles, state.num_tiles[1]);
  if (team.rank() == 0) build.mask_info->walk.heads_innermost = direction.heads_innermost;
}

template <class Team>
TANGRAM_HOST_DEVICE void list_turns(const Team& team, const TurnBuild& build, int32_t at) {
  const Turns& turns = build.turns;
  visit_segments(team, build, at, [&](int32_t scheduled, int32_t turn) {
    turns.listed[turns.first_segment[scheduled] + team.add(&turns.num_listed[scheduled], 1)] = {at, turn};
  });
}

template <class Team>
TANGRAM_HOST_DEVICE void fill_turns(const Team& team, const TurnBuild& build, int32_t at) {
  const Pass& pass = build.passes[1];
  const Turns& turns = build.turns;
  if (at >= build.state->num_tiles[1]) return;
  const bool descending = build.mask_info->walk.descending;
  const auto segments_at = static_cast<int32_t>(array_places(build).segments);
  const int32_t num_runs = pass.first_run[at + 1] - pass.first_run[at];
  for (int32_t r = 0; r < num_runs; ++r) {
    const int32_t scheduled = turns.first_scheduled[at] + (descending ? num_runs - 1 - r : r);
    const int32_t first = turns.first_segment[scheduled], count = turns.first_segment[scheduled + 1] - first - 1;
    const DqOrderSegment* const listed = turns.listed + first;
    DqOrderSegment* const segments = turns.segments + segments_at + first;
    for_each(team, count, [&](int32_t i) {
      const DqOrderSegment segment = listed[i];
      int32_t before = 0, end = turns.scheduled[scheduled].end;
      for (int32_t j = 0; j < count; ++j) {
        const int32_t other = listed[j].first_tile;
        before += other < segment.first_tile;
        if (other > segment.first_tile) end = least(end, other);
      }
      if (descending) {
        segments[count - 1 - before] = {end - 1, segment.turn};
      } else {
        segments[before] = segment;
      }
    });
    if (team.rank() != 0) continue;
    segments[count] = {kNoTile, 0};
    build.run_tiles[pass.first_run[at] + r].segment = segments_at + first;
  }
}

}  // namespace tangram::schedule::builder
