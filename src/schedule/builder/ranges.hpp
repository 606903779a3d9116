// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Slices of any typed ranges, put into the order of their rows and of their keys, with a check that none covers what
// another does. Each slice is held against all others by a warp, which needs no memory and few steps; so it is for
// thousands of slices. In steps, each of which all teams have done before the next begins.
#pragma once

#include <cstdint>

#include "schedule/builder/documents.hpp"
#include "schedule/builder/places.hpp"
#include "tangram/slice.hpp"

namespace tangram::schedule::builder {

struct Ranges {
  const void* q_ranges = nullptr;  ///< [count, 2]
  const void* k_ranges = nullptr;
  const void* types = nullptr;  ///< [count] of MaskType, or null: all of `type`
  int32_t type = 0;
  bool is_wide = false;  ///< of 64 bits, else 32
  int32_t count = 0;

  TANGRAM_HOST_DEVICE int64_t at(const void* list, int64_t i) const {
    return is_wide ? static_cast<const int64_t*>(list)[i] : static_cast<const int32_t*>(list)[i];
  }
  TANGRAM_HOST_DEVICE int64_t type_of(int32_t i) const { return types == nullptr ? type : at(types, i); }
  /// Canonical; of ranges within the sequences and a type that there is.
  TANGRAM_HOST_DEVICE Slice slice(int32_t i) const {
    Slice slice;
    slice.row_begin = static_cast<int32_t>(at(q_ranges, int64_t{2} * i));
    slice.row_end = static_cast<int32_t>(at(q_ranges, int64_t{2} * i + 1));
    slice.key_begin = static_cast<int32_t>(at(k_ranges, int64_t{2} * i));
    slice.key_end = static_cast<int32_t>(at(k_ranges, int64_t{2} * i + 1));
    const int64_t kind = type_of(i);
    const bool has_min =
        kind == static_cast<int>(MaskType::kInvCausal) || kind == static_cast<int>(MaskType::kBiCausal);
    const bool has_max = kind == static_cast<int>(MaskType::kCausal) || kind == static_cast<int>(MaskType::kBiCausal);
    return canonical(slice, has_min ? int64_t{slice.key_begin} - slice.row_begin : kOpenMin,
                     has_max ? int64_t{slice.key_end} - slice.row_end : kOpenMax);
  }
};

/// Whether a stands before b where slices are in order of their rows. None is twice there.
TANGRAM_HOST_DEVICE constexpr bool has_earlier_rows(const Slice& a, const Slice& b) {
  if (a.row_begin != b.row_begin) return a.row_begin < b.row_begin;
  if (a.row_end != b.row_end) return a.row_end < b.row_end;
  if (a.key_begin != b.key_begin) return a.key_begin < b.key_begin;
  if (a.key_end != b.key_end) return a.key_end < b.key_end;
  return a.min_diag != b.min_diag ? a.min_diag < b.min_diag : a.max_diag < b.max_diag;
}

/// Whether both show some cell.
TANGRAM_HOST_DEVICE constexpr bool overlap(const Slice& a, const Slice& b) {
  const Slice both{most(a.row_begin, b.row_begin), least(a.row_end, b.row_end), most(a.key_begin, b.key_begin),
                   least(a.key_end, b.key_end)};
  return !canonical(both, most(a.min_diag, b.min_diag), least(a.max_diag, b.max_diag)).empty();
}

/// The first step, by one team: what shows something, in `given`, with its index.
template <class Team>
TANGRAM_HOST_DEVICE void begin_ranges(const Team& team, const Build& build, const Ranges& ranges) {
  begin_build(team, build);
  State& state = *build.state;
  const int64_t rows = build.passes[0].num_rows, keys = build.passes[0].num_keys;
  const auto lies_in = [&](const void* list, int32_t i, int64_t length) {
    const int64_t begin = ranges.at(list, int64_t{2} * i), end = ranges.at(list, int64_t{2} * i + 1);
    return 0 <= begin && begin <= end && end <= length;
  };
  for_each(team, ranges.count, [&](int32_t i) {
    if (!lies_in(ranges.q_ranges, i, rows)) note(team, state, i, Problem::kQueryRange);
    if (!lies_in(ranges.k_ranges, i, keys)) note(team, state, i, Problem::kKeyRange);
    const int64_t type = ranges.type_of(i);
    if (type < 0 || type > static_cast<int>(MaskType::kBiCausal)) note(team, state, i, Problem::kMaskType);
  });
  team.sync();
  if (state.first_problem != kNoProblem) return;
  int32_t num_given = 0;
  for (int32_t begin = 0; begin < ranges.count; begin += team.size()) {
    const int32_t i = begin + team.rank();
    const Slice slice = i < ranges.count ? ranges.slice(i) : Slice{};
    int32_t total;
    const int32_t at = num_given + team.sum_before(!slice.empty(), total);
    num_given += total;
    if (slice.empty()) continue;
    build.given[at] = slice;
    build.given_index[at] = i;
  }
  if (team.rank() == 0) state.num_slices = state.num_slices_of_keys = num_given;
}

/// The second, for one slice: its places, and whether it meets one that was given before.
template <class Team>
TANGRAM_HOST_DEVICE void sort_slice(const Team& team, const Build& build, int32_t at) {
  State& state = *build.state;
  if (at >= state.num_slices) return;
  const Slice slice = build.given[at], across = transposed(slice);
  int64_t by_rows = 0, by_keys = 0;
  bool meets = false;
  for_each(team, state.num_slices, [&](int32_t other_at) {
    const Slice other = build.given[other_at];
    // Equal ones are refused, but must not share a place before that is known.
    const bool is_twin = !has_earlier_rows(other, slice) && !has_earlier_rows(slice, other) && other_at < at;
    by_rows += has_earlier_rows(other, slice) || is_twin;
    by_keys += has_earlier_rows(transposed(other), across) || is_twin;
    meets = meets || (other_at < at && overlap(other, slice));
  });
  by_rows = team.sum(by_rows), by_keys = team.sum(by_keys);
  if (meets) note(team, state, build.given_index[at], Problem::kOverlap);
  if (team.rank() != 0) return;
  build.passes[0].slices[by_rows] = slice;
  if (build.has_backward) build.passes[1].slices[by_keys] = across;
}

/// The third, for one slice of a pass: how far those up to it reach, and whether it is the first of a row at which the
/// mask falls apart, as separations() of tile_list.cpp says.
template <class Team>
TANGRAM_HOST_DEVICE void scan_slice(const Team& team, const Build& build, int side, int32_t at) {
  if (at >= build.state->num_slices || (side == 1 && !build.has_backward)) return;
  const Pass& pass = build.passes[side];
  const int32_t row = pass.slices[at].row_begin;
  int64_t end = 0, end_above = 0;
  for_each(team, at + 1, [&](int32_t i) {
    end = most<int64_t>(end, pass.slices[i].row_end);
    if (pass.slices[i].row_begin < row) end_above = most<int64_t>(end_above, pass.slices[i].row_end);
  });
  end = team.greatest(end), end_above = team.greatest(end_above);
  bool is_apart = row > 0 && end_above <= row && (at == 0 || pass.slices[at - 1].row_begin < row);
  if (is_apart && end_above == row) {
    bool mine = true;
    for_each(team, at, [&](int32_t i) {
      const Slice above = pass.slices[i];
      if (above.row_end != row) return;
      for (int32_t j = at; mine && j < build.state->num_slices && pass.slices[j].row_begin == row; ++j) {
        mine = above.key_end <= pass.slices[j].key_begin || pass.slices[j].key_end <= above.key_begin;
      }
    });
    is_apart = team.all(mine);
  }
  if (team.rank() != 0) return;
  pass.ends[at] = static_cast<int32_t>(end);
  build.is_apart[side][at] = is_apart;
}

/// What is wrong, if something is.
template <class Team>
TANGRAM_HOST_DEVICE void check_ranges(const Team& team, const Build& build, const Ranges& ranges) {
  State& state = *build.state;
  const uint32_t first = state.first_problem;
  team.sync();
  if (first == kNoProblem) return;
  const auto index = static_cast<int32_t>(first / kProblems);
  const auto problem = static_cast<Problem>(first % kProblems);
  if (problem == Problem::kOverlap) {  // with which
    if (team.rank() == 0) state.first_problem = kNoProblem;
    team.sync();
    const Slice slice = ranges.slice(index);
    for_each(team, index, [&](int32_t i) {
      if (overlap(ranges.slice(i), slice)) team.lower(&state.first_problem, static_cast<uint32_t>(i));
    });
    team.sync();
  }
  if (team.rank() == 0) {
    const void* const list = problem == Problem::kKeyRange ? ranges.k_ranges : ranges.q_ranges;
    const int64_t begin = ranges.at(list, int64_t{2} * index), end = ranges.at(list, int64_t{2} * index + 1);
    if (problem == Problem::kOverlap) {
      refuse(state, problem, index, state.first_problem, 0);
    } else if (problem == Problem::kMaskType) {
      refuse(state, problem, index, ranges.type_of(index), 0);
    } else {
      refuse(state, problem, index, begin, end);
    }
  }
  team.sync();
}

/// The fourth, by one team: what is wrong, and where tiles begin.
template <class Team>
TANGRAM_HOST_DEVICE void finish_ranges(const Team& team, const Build& build, const Ranges& ranges) {
  State& state = *build.state;
  check_ranges(team, build, ranges);
  const int32_t num_slices = build.has_backward ? state.num_slices : 0;  // 0 where they are refused
  for (int side = 0; side < 2; ++side) {
    int32_t num_candidates = 0;
    for (int32_t begin = 0; begin < num_slices; begin += team.size()) {
      const int32_t at = begin + team.rank();
      const bool is_apart = at < num_slices && build.is_apart[side][at] != 0;
      int32_t total;
      const int32_t place = num_candidates + team.sum_before(is_apart, total);
      num_candidates += total;
      if (is_apart) build.candidates[side][place] = build.passes[side].slices[at].row_begin;
    }
    if (team.rank() == 0) build.num_candidates[side] = num_candidates;
  }
  team.sync();
  begin_tiles(team, build);
}

}  // namespace tangram::schedule::builder
