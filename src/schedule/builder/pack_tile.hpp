// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a tile sees, as runs of keys: as tile_list.cpp packs pieces of slices first-fit by their keys. First all tiles
// count their runs, then, when it is known where each writes, they fill them in.
#pragma once

#include <cstdint>

#include "schedule/builder/places.hpp"

namespace tangram::schedule::builder {

inline constexpr int32_t kNoPiece = -1;

/// The slices that may have rows in [begin, end): [first, last) in the order of rows.
struct Window {
  int32_t first = 0, last = 0;
};
TANGRAM_HOST_DEVICE inline Window window_of(const Pass& pass, int32_t num_slices, int32_t begin, int32_t end) {
  return {first_of(num_slices, [&](int32_t i) { return pass.ends[i] > begin; }),
          first_of(num_slices, [&](int32_t i) { return pass.slices[i].row_begin >= end; })};
}

TANGRAM_HOST_DEVICE inline bool has_all_rows(const Slice& head_split, int32_t begin, int32_t end) {
  return head_split.row_begin == begin && head_split.row_end == end;
}

/// The pieces of the tile in the order of their keys; false if there is no room for them.
template <class Team>
TANGRAM_HOST_DEVICE bool collect_pieces(const Team& team, const Pass& pass, int32_t num_slices,
                                        uint64_t* num_head_splits, int32_t begin, int32_t end, Tile* tile) {
  const Window window = window_of(pass, num_slices, begin, end);
  int64_t mine = 0;
  for (int32_t i = window.first + team.rank(); i < window.last; i += team.size())
    mine += pass.slices[i].row_end > begin;
  const auto count = static_cast<int32_t>(team.sum(mine));
  uint64_t place = 0;
  if (team.rank() == 0) {
    *tile = {};
    if (count > 0) place = team.add(num_head_splits, static_cast<uint64_t>(count));
  }
  place = static_cast<uint64_t>(team.first(static_cast<int64_t>(place)));
  if (place + static_cast<uint64_t>(count) > static_cast<uint64_t>(pass.max_pieces)) return false;
  const auto first = static_cast<int32_t>(place);
  if (team.rank() == 0) tile->first_piece = first;
  team.sync();
  // Pieces come in any order, and stand where as many others have earlier keys.
  for (int32_t i = window.first + team.rank(); i < window.last; i += team.size()) {
    if (pass.slices[i].row_end <= begin) continue;
    pass.unsorted[first + team.add(&tile->num_head_splits, 1)] = cut_rows(pass.slices[i], begin, end);
  }
  team.sync();
  for_each(team, count, [&](int32_t i) {
    const Slice head_split = pass.unsorted[first + i];
    int32_t before = 0;
    for (int32_t j = 0; j < count; ++j) before += has_earlier_keys(pass.unsorted[first + j], head_split);
    pass.head_splits[first + before] = head_split;
  });
  team.sync();
  return true;
}

/// First fit by the first key, by one thread; returns the number of runs. `runs`, `next`: of these pieces.
TANGRAM_HOST_DEVICE inline int32_t pack_pieces(const Slice* head_splits, int32_t num_head_splits, Run* runs,
                                               int32_t* next) {
  int32_t num_runs = 0, first_alive = 0;
  for (int32_t i = 0; i < num_head_splits; ++i) {
    const Slice head_split = head_splits[i];
    next[i] = kNoPiece;
    const auto ends_before = [&](const Run& run) { return run.key_end < head_split.key_begin; };
    const auto shares_rows = [&](const Run& run) {
      if (run.row_end <= head_split.row_begin || head_split.row_end <= run.row_begin) return false;
      for (int32_t p = run.first; p != kNoPiece; p = next[p]) {
        if (head_splits[p].row_begin < head_split.row_end && head_split.row_begin < head_splits[p].row_end) return true;
      }
      return false;
    };
    while (first_alive < num_runs && ends_before(runs[first_alive])) ++first_alive;
    int32_t at = first_alive;
    while (at < num_runs && (ends_before(runs[at]) || shares_rows(runs[at]))) ++at;
    if (at == num_runs) {
      runs[num_runs++] = {head_split.key_begin, head_split.key_end, head_split.row_begin, head_split.row_end, i, i};
      continue;
    }
    Run& run = runs[at];
    run.key_begin = least(run.key_begin, head_split.key_begin);
    run.key_end = most(run.key_end, head_split.key_end);
    run.row_begin = least(run.row_begin, head_split.row_begin);
    run.row_end = most(run.row_end, head_split.row_end);
    next[run.last] = i;
    run.last = i;
  }
  return num_runs;
}

/// The tile [begins[at], begins[at + 1]) that holds a row.
TANGRAM_HOST_DEVICE inline int32_t tile_of_row(const int32_t* begins, int32_t num_tiles, int32_t row) {
  return first_of(num_tiles, [&](int32_t tile) { return begins[tile + 1] > row; });
}

/// Keys of run r of a tile: of a whole tile a run is a piece.
TANGRAM_HOST_DEVICE inline Run run_of(const Pass& pass, const Tile& tile, int32_t r) {
  if (!tile.whole) return pass.open_runs[tile.first_piece + r];
  const Slice& head_split = pass.head_splits[tile.first_piece + r];
  return {head_split.key_begin, head_split.key_end, head_split.row_begin, head_split.row_end, r, r};
}

/// Counts what the tile sees. `index`: of the pass.
template <class Team>
TANGRAM_HOST_DEVICE void count_tile(const Team& team, const Build& build, int index, int32_t at) {
  const Pass& pass = build.passes[index];
  State& state = *build.state;
  if (at >= state.num_tiles[index]) return;
  Tile* const tile = pass.tiles + at;
  const int32_t begin = pass.begins[at], end = pass.begins[at + 1];
  const int32_t num_slices = index == 0 ? state.num_slices : state.num_slices_of_keys;
  if (!collect_pieces(team, pass, num_slices, &state.num_head_splits[index], begin, end, tile)) {
    if (team.rank() == 0) pass.first_run[at] = pass.first_interval[at] = pass.costs[at] = 0;
    return;  // num_head_splits says so
  }
  const int32_t num_head_splits = tile->num_head_splits, first = tile->first_piece;
  bool mine_whole = true;
  for_each(team, num_head_splits,
           [&](int32_t i) { mine_whole = mine_whole && has_all_rows(pass.head_splits[first + i], begin, end); });
  const bool whole = num_head_splits == 1 || team.all(mine_whole);
  if (team.rank() == 0) {
    tile->whole = whole;
    tile->num_runs =
        whole ? num_head_splits
              : pack_pieces(pass.head_splits + first, num_head_splits, pass.open_runs + first, pass.next + first);
  }
  team.sync();
  const Tile known = *tile;
  int64_t cost = 0, in_pieces = 0, count = 0, from_first = 0, to_end = 0;
  for_each(team, known.num_runs, [&](int32_t r) {
    const Run run = run_of(pass, known, r);
    cost += tiles_of(run.key_end - run.key_begin, pass.block_keys);
    in_pieces += run.first != run.last;
    if (index == 0) return;
    const int32_t first_tile = tile_of_row(build.q_begins, state.num_q_tiles, run.key_begin);
    const int32_t end_tile = tile_of_row(build.q_begins, state.num_q_tiles, run.key_end - 1) + 1;
    count += end_tile - first_tile;
    from_first = most<int64_t>(from_first, state.num_q_tiles - first_tile);
    to_end = most<int64_t>(to_end, end_tile);
  });
  cost = team.sum(cost), in_pieces = team.sum(in_pieces);
  if (index == 1) {
    count = team.sum(count);
    from_first = team.greatest(from_first), to_end = team.greatest(to_end);
  }
  if (team.rank() != 0) return;
  pass.costs[at] = static_cast<int32_t>(cost);
  tile->count = static_cast<int32_t>(count);
  tile->first = known.num_runs == 0 || index == 0 ? 0 : state.num_q_tiles - static_cast<int32_t>(from_first);
  tile->end = static_cast<int32_t>(to_end);
  pass.first_run[at] = known.num_runs;
  pass.first_interval[at] = static_cast<int32_t>(in_pieces) * (end - begin);
}

/// The keys that all rows of a piece see; empty: begin >= end.
TANGRAM_HOST_DEVICE inline RowInterval common_keys(const Slice& head_split) {
  return {head_split.first_key(head_split.row_end - 1), head_split.end_key(head_split.row_begin)};
}

/// Range in closed form, for a run of one slice; `has_all`: the slice has all rows of the tile.
TANGRAM_HOST_DEVICE inline TileRange closed_form(const Slice& head_split, bool has_all) {
  TileRange run;
  run.k_begin = run.slice_k_begin = head_split.key_begin;
  run.k_end = run.slice_k_end = head_split.key_end;
  const RowInterval common = common_keys(head_split);
  if (has_all && common.begin < common.end) run.full_begin = common.begin, run.full_end = common.end;
  run.row_begin = head_split.row_begin;
  run.row_end = head_split.row_end;
  run.min_diag = most(head_split.min_diag, head_split.key_begin - head_split.row_end);
  run.max_diag = least(head_split.max_diag, head_split.key_end - head_split.row_begin);
  return run;
}

/// Writes the runs of a tile and their intervals. `intervals_at`: the first interval of the pass; `segments_at`: the
/// first dQ order segment; both in intervals from the begin of the image.
template <class Team>
TANGRAM_HOST_DEVICE void fill_runs(const Team& team, const Build& build, int index, int32_t at, int64_t intervals_at,
                                   int64_t segments_at) {
  const Pass& pass = build.passes[index];
  const Tile tile = pass.tiles[at];
  const int32_t begin = pass.begins[at], end = pass.begins[at + 1];
  const Slice* const head_splits = pass.head_splits + tile.first_piece;
  const int32_t* const next = pass.next + tile.first_piece;
  TileRange* const runs = pass.runs + pass.first_run[at];
  const int32_t num_runs = pass.first_run[at + 1] - pass.first_run[at];  // none of a refused mask
  for_each(team, num_runs, [&](int32_t r) {
    const Run open = run_of(pass, tile, r);
    if (open.first == open.last)
      runs[r] = closed_form(head_splits[open.first], has_all_rows(head_splits[open.first], begin, end));
    if (index == 0) return;
    build.run_tiles[pass.first_run[at] + r] = {
        tile_of_row(build.q_begins, build.state->num_q_tiles, open.key_begin),
        tile_of_row(build.q_begins, build.state->num_q_tiles, open.key_end - 1) + 1, static_cast<int32_t>(segments_at)};
  });
  if (tile.whole) return;
  int64_t interval = intervals_at + pass.first_interval[at];
  for (int32_t r = 0; r < num_runs; ++r) {
    const Run open = run_of(pass, tile, r);
    if (open.first == open.last) continue;
    RowInterval* const intervals = build.intervals + interval;
    for_each(team, end - begin, [&](int32_t row) { intervals[row] = {}; });
    team.sync();
    RowInterval common{open.key_begin, open.key_end};
    int32_t num_rows = 0;
    for (int32_t p = open.first; p != kNoPiece; p = next[p]) {
      const Slice head_split = head_splits[p];
      for_each(team, head_split.row_end - head_split.row_begin, [&](int32_t i) {
        const int32_t row = head_split.row_begin + i;
        intervals[row - begin] = {head_split.first_key(row), head_split.end_key(row)};
      });
      num_rows += head_split.row_end - head_split.row_begin;
      const RowInterval of_piece = common_keys(head_split);
      common = {most(common.begin, of_piece.begin), least(common.end, of_piece.end)};
    }
    if (team.rank() == 0) {
      TileRange run;
      run.k_begin = open.key_begin;
      run.k_end = open.key_end;
      if (num_rows == end - begin && common.begin < common.end) {
        run.full_begin = common.begin, run.full_end = common.end;
      }
      run.row_begin = begin;
      run.row_end = end;
      run.interval_begin = static_cast<int32_t>(interval);
      runs[r] = run;
    }
    interval += end - begin;
  }
}

}  // namespace tangram::schedule::builder
