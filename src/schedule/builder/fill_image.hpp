// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The last step: what was counted is written to the image (NOTE [image]), tile by tile.
#pragma once

#include <cstdint>

#include "schedule/builder/pack_tile.hpp"
#include "schedule/builder/places.hpp"

namespace tangram::schedule::builder {

/// Where intervals of the passes and turn segments begin, in intervals from the begin of the image.
struct ArrayPlaces {
  int64_t forward = 0, backward = 0, segments = 0;
};
TANGRAM_HOST_DEVICE inline ArrayPlaces array_places(const Build& build) {
  static_assert(sizeof(DqOrderSegment) == sizeof(RowInterval));
  const State& state = *build.state;
  ArrayPlaces places;
  places.forward = (build.work_tiles_offset + int64_t{state.num_work_tiles} * static_cast<int64_t>(sizeof(WorkTile))) /
                   static_cast<int64_t>(sizeof(RowInterval));
  places.backward = places.forward + (build.has_forward ? state.num_intervals : 0);
  places.segments = places.backward;
  if (build.has_backward) places.segments += build.passes[1].first_interval[state.num_tiles[1]];
  return places;
}

/// Bits of rows [begin, begin + 64) that a slice shows, or that lie behind all rows.
template <class Team>
TANGRAM_HOST_DEVICE uint64_t shown_rows(const Team& team, const Pass& pass, int32_t num_slices, int32_t begin) {
  const auto bits_of = [&](int32_t from, int32_t to) -> uint64_t {
    from = most(from - begin, 0), to = least(to - begin, 64);
    if (from >= to) return 0;
    return (to - from == 64 ? ~uint64_t{0} : (uint64_t{1} << (to - from)) - 1) << from;
  };
  const Window window = window_of(pass, num_slices, begin, begin + 64);
  uint64_t bits = begin + 64 > pass.num_rows ? bits_of(pass.num_rows, begin + 64) : 0;
  for (int32_t i = window.first + team.rank(); i < window.last; i += team.size()) {
    bits |= bits_of(pass.slices[i].row_begin, pass.slices[i].row_end);
  }
  return team.any_bits(bits);
}

/// Longest first, ties in the order of rows.
template <class Team>
TANGRAM_HOST_DEVICE void fill_forward_work_tile(const Team& team, const Build& build, int32_t at) {
  const Pass& pass = build.passes[0];
  const int32_t cost = pass.costs[at];
  int64_t before = 0;
  for_each(team, build.state->num_tiles[0], [&](int32_t other) {
    const int32_t more = pass.costs[other] - cost;
    before += more > 0 || (more == 0 && other < at);
  });
  before = team.sum(before);
  if (team.rank() != 0) return;
  build.forward_work_tiles[before] = {pass.begins[at], pass.begins[at + 1], pass.first_run[at], pass.first_run[at + 1]};
}

/// Counts of the key tiles scheduled before one, and of all in its group: head splits, tiles, split tiles.
struct ScheduledBefore {
  struct Count {
    int64_t head_splits = 0, tiles = 0, cut = 0;
  };
  Count earlier, group, before;  ///< in earlier groups, in its own, before it there

  /// The longest pieces come first, then the longest work tiles.
  template <class Team>
  TANGRAM_HOST_DEVICE static ScheduledBefore of(const Team& team, const Build& build, int32_t at) {
    const Tile* const tiles = build.passes[1].tiles;
    const Share share = build.shares[at];
    const int32_t visits = tiles[at].count;
    ScheduledBefore result;
    const auto count_in = [&](Count& count, const Share& other) {
      count.head_splits += other.head_splits, ++count.tiles, count.cut += other.head_splits > 1;
    };
    for_each(team, build.state->num_tiles[1], [&](int32_t i) {
      const Share other = build.shares[i];
      if (other.group < share.group) count_in(result.earlier, other);
      if (other.group != share.group) return;
      count_in(result.group, other);
      const int32_t longer_pieces = other.steps - share.steps, longer = tiles[i].count - visits;
      if (longer_pieces > 0 || (longer_pieces == 0 && (longer > 0 || (longer == 0 && i < at)))) {
        count_in(result.before, other);
      }
    });
    for (Count* count : {&result.earlier, &result.group, &result.before}) {
      count->head_splits = team.sum(count->head_splits), count->tiles = team.sum(count->tiles),
      count->cut = team.sum(count->cut);
    }
    return result;
  }
};

/// Where a work tile is scheduled, and where its pieces add up.
struct WorkTilePlace {
  int64_t work_tile = 0, accum_tile = 0;
};

/// Groups one after the other, in each so many heads at a time.
TANGRAM_HOST_DEVICE inline WorkTilePlace place_by_group(const Build& build, const ScheduledBefore& scheduled,
                                                        const Share& share, int32_t head, int32_t head_split) {
  const int64_t heads = build.num_heads_kv, heads_in_l2 = build.state->heads_together;
  const int64_t first = head / heads_in_l2 * heads_in_l2, width = least(heads_in_l2, heads - first);
  const auto place = [&](int64_t earlier, int64_t group, int64_t before, int64_t each) {
    return earlier * heads + first * group + before * width + (head - first) * each;
  };
  return {place(scheduled.earlier.head_splits, scheduled.group.head_splits, scheduled.before.head_splits,
                share.head_splits) +
              head_split,
          share.head_splits == 1 ? 0 : place(scheduled.earlier.cut, scheduled.group.cut, scheduled.before.cut, 1)};
}

/// Sections of pieces of all heads; fully masked tiles are one group behind the others, of which the first tiles of
/// heads count.
TANGRAM_HOST_DEVICE inline WorkTilePlace place_in_section(const Build& build, const ScheduledBefore& scheduled,
                                                          const Share& share, int32_t head, int32_t head_split) {
  const Sections& sections = build.state->sections;
  const int32_t head_splits = sections.head_splits, all = build.num_heads_kv * head_splits;
  const bool is_seen = share.group == 0;
  const int64_t seen = is_seen ? scheduled.group.tiles : scheduled.earlier.tiles;
  const int64_t unseen = build.state->num_tiles[1] - seen;
  const auto begin_of = [&](int32_t number) { return number / sections.heads_in_l2 * sections.heads_in_l2; };
  const auto heads_before = [&](int32_t number) { return (number + head_splits - 1) / head_splits; };
  const int32_t number = head * head_splits + head_split, begin = begin_of(number);
  const int32_t end = least(begin + sections.heads_in_l2, all);
  const int32_t heads = heads_before(end) - heads_before(begin);
  WorkTilePlace place;
  place.work_tile = seen * begin + unseen * heads_before(begin);
  if (is_seen) {
    place.work_tile += scheduled.before.tiles * (end - begin) + number - begin;
  } else {
    place.work_tile += seen * (end - begin) + scheduled.before.tiles * heads + head - heads_before(begin);
  }
  if (!is_seen || head_splits == 1) return place;
  const int32_t first = begin_of(head * head_splits);  // where the first piece of this head is scheduled
  const int32_t first_end = least(first + sections.heads_in_l2, all);
  place.accum_tile = seen * heads_before(first) +
                     scheduled.before.tiles * (heads_before(first_end) - heads_before(first)) + head -
                     heads_before(first);
  return place;
}

/// The work tiles of a key tile, for all heads.
template <class Team>
TANGRAM_HOST_DEVICE void fill_backward_work_tiles(const Team& team, const Build& build, int32_t at) {
  const Pass& pass = build.passes[1];
  const State& state = *build.state;
  const Share share = build.shares[at];
  const ScheduledBefore scheduled = ScheduledBefore::of(team, build, at);
  WorkTile work_tile;
  work_tile.row_begin = pass.begins[at];
  work_tile.row_end = pass.begins[at + 1];
  work_tile.run_begin = pass.first_run[at];
  work_tile.run_end = pass.first_run[at + 1];
  for (int word = 0; word < 2; ++word) {
    const uint64_t bits = shown_rows(team, pass, state.num_slices_of_keys, work_tile.row_begin + word * 64);
    work_tile.covered[word * 2] = static_cast<uint32_t>(bits);
    work_tile.covered[word * 2 + 1] = static_cast<uint32_t>(bits >> 32);
    if (bits != ~uint64_t{0}) work_tile.flags = kWorkTileZeroRows;
  }
  const int32_t group_heads = build.num_heads_q / build.num_heads_kv;
  const auto first_head = [&](int32_t head_split) { return group_heads * head_split / share.head_splits; };
  work_tile.num_head_splits = share.head_splits;
  for_each(team, build.num_heads_kv * share.head_splits, [&](int32_t number) {
    const int32_t head = number / share.head_splits, head_split = number - head * share.head_splits;
    const WorkTilePlace place = state.sections.head_splits > 0
                                    ? place_in_section(build, scheduled, share, head, head_split)
                                    : place_by_group(build, scheduled, share, head, head_split);
    WorkTile of_piece = work_tile;
    of_piece.kv_head = head;
    of_piece.head_begin = head * group_heads + first_head(head_split);
    of_piece.head_end = head * group_heads + first_head(head_split + 1);
    of_piece.num_steps = pass.tiles[at].count * (of_piece.head_end - of_piece.head_begin);
    of_piece.head_split = head_split;
    of_piece.accum_tile = static_cast<int32_t>(place.accum_tile);
    build.work_tiles[place.work_tile] = of_piece;
  });
}

/// One that the mask leaves unused is empty.
template <class Team>
TANGRAM_HOST_DEVICE void fill_q_tile(const Team& team, const Build& build, int32_t at) {
  const int32_t seqlen_q = build.passes[1].num_keys;
  const bool is_used = at < build.state->num_q_tiles;
  const uint64_t shown =
      is_used ? shown_rows(team, build.passes[0], build.state->num_slices, build.q_begins[at]) : ~uint64_t{0};
  if (team.rank() != 0) return;
  build.q_tiles[at] = is_used ? QueryTile{build.q_begins[at], build.q_begins[at + 1]} : QueryTile{seqlen_q, seqlen_q};
  build.covered_queries[at] = shown;
}

/// How many calls of fill_part() write an image.
TANGRAM_HOST_DEVICE inline int32_t num_parts(const Build& build) {
  return build.passes[0].max_tiles + build.passes[1].max_tiles + build.max_q_tiles;
}

template <class Team>
TANGRAM_HOST_DEVICE void fill_part(const Team& team, const Build& build, int32_t part) {
  const State& state = *build.state;
  const ArrayPlaces places = array_places(build);
  const int32_t forward = build.passes[0].max_tiles, backward = build.passes[1].max_tiles;
  if (part < forward) {
    if (!build.has_forward || part >= state.num_tiles[0]) return;
    fill_runs(team, build, 0, part, places.forward, 0);
    fill_forward_work_tile(team, build, part);
  } else if (part < forward + backward) {
    if (part - forward >= state.num_tiles[1]) return;
    fill_runs(team, build, 1, part - forward, places.backward, places.segments);
    fill_backward_work_tiles(team, build, part - forward);
  } else {
    fill_q_tile(team, build, part - forward - backward);
  }
}

}  // namespace tangram::schedule::builder
