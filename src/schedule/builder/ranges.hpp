// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Slices of any typed ranges, put into the order of their rows and of their keys, with a check that none covers what
// another does. Slices that begin near each other are in one bucket. Each is compared with those of its bucket, and
// then with those above that reach down to it. In steps, each of which all teams have done before the next begins.
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

/// The first row of a slice, or the first key, to the bucket of it.
TANGRAM_HOST_DEVICE inline int32_t bucket_of(const SortBuild& build, int side, int32_t begin) {
  return begin >> build.sorting.shift[side];
}

/// The first step, by one team: nothing is there yet.
template <class Team>
TANGRAM_HOST_DEVICE void begin_ranges(const Team& team, const SortBuild& build) {
  begin_build(team, build);
  const Sorting& sorting = build.sorting;
  for_each(team, kBuckets, [&](int32_t bucket) {
    for (int side = 0; side < 2; ++side) {
      sorting.first[side][bucket] = sorting.num_placed[side][bucket] = sorting.ends_before[side][bucket] = 0;
    }
  });
}

/// The second pass, for one range. It checks that the range lies within the sequences, makes its slice, perhaps an
/// empty one, and counts slices and their reach per bucket. By one thread, whose team has no part in it but to note.
template <class Team>
TANGRAM_HOST_DEVICE void read_range(const Team& team, const SortBuild& build, const Ranges& ranges, int32_t i) {
  State& state = *build.state;
  const auto lies_in = [&](const void* list, int64_t length) {
    const int64_t begin = ranges.at(list, int64_t{2} * i), end = ranges.at(list, int64_t{2} * i + 1);
    return 0 <= begin && begin <= end && end <= length;
  };
  const bool has_queries = lies_in(ranges.q_ranges, build.passes[0].num_rows);
  const bool has_keys = lies_in(ranges.k_ranges, build.passes[0].num_keys);
  const int64_t type = ranges.type_of(i);
  const bool has_type = 0 <= type && type <= static_cast<int>(MaskType::kBiCausal);
  if (!has_queries) note(team, state, i, Problem::kQueryRange);
  if (!has_keys) note(team, state, i, Problem::kKeyRange);
  if (!has_type) note(team, state, i, Problem::kMaskType);
  if (!has_queries || !has_keys || !has_type) return;
  const Slice slice = ranges.slice(i);
  build.given[i] = slice;
  if (slice.empty()) return;
  for (int side = 0; side < 2; ++side) {
    const int32_t bucket = bucket_of(build, side, side == 0 ? slice.row_begin : slice.key_begin);
    team.add(&build.sorting.first[side][bucket], 1);
    team.raise(&build.sorting.ends_before[side][bucket], side == 0 ? slice.row_end : slice.key_end);
  }
}

/// The third, by one team: where the members of buckets are listed. A mask with a problem has none.
template <class Team>
TANGRAM_HOST_DEVICE void place_buckets(const Team& team, const SortBuild& build) {
  State& state = *build.state;
  if (state.first_problem != kNoProblem) return;
  const Sorting& sorting = build.sorting;
  int32_t num_slices = 0;
  for (int side = 0; side < 2; ++side) {
    num_slices = sums_before(team, sorting.first[side], kBuckets);
    greatest_before(team, sorting.ends_before[side], kBuckets);
  }
  if (team.rank() == 0) state.num_slices = state.num_slices_of_keys = num_slices;
}

/// The fourth, for one range, by one thread: its slice to its buckets.
template <class Team>
TANGRAM_HOST_DEVICE void list_range(const Team& team, const SortBuild& build, int32_t i) {
  if (build.state->num_slices == 0 || build.given[i].empty()) return;
  const Sorting& sorting = build.sorting;
  const int32_t begins[2] = {build.given[i].row_begin, build.given[i].key_begin};
  for (int side = 0; side < 2; ++side) {
    const int32_t bucket = bucket_of(build, side, begins[side]);
    const int32_t place = sorting.first[side][bucket] + team.add(&sorting.num_placed[side][bucket], 1);
    sorting.members[side][place] = i;
  }
}

/// The fifth, for one range: the places of its slice. Also computes how far slices up to it reach, and whether it is
/// the first of a row at which the mask may fall apart (see separations() of tile_begins.cpp).
template <class Team>
TANGRAM_HOST_DEVICE void sort_slice(const Team& team, const SortBuild& build, int32_t at) {
  if (build.state->num_slices == 0 || build.given[at].empty()) return;
  const Sorting& sorting = build.sorting;
  const Slice slice = build.given[at];
  for (int side = 0; side < (build.has_backward ? 2 : 1); ++side) {
    const auto seen = [&](const Slice& any) { return side == 0 ? any : transposed(any); };
    const Slice mine = seen(slice);
    const int32_t bucket = bucket_of(build, side, mine.row_begin);
    const int32_t* const members = sorting.members[side] + sorting.first[side][bucket];
    int64_t before = 0, of_row = 0;
    int64_t end = sorting.ends_before[side][bucket], end_above = end;
    for_each(team, sorting.first[side][bucket + 1] - sorting.first[side][bucket], [&](int32_t i) {
      const Slice other = seen(build.given[members[i]]);
      // Equal ones are refused, but must not share a place before that is known.
      const bool is_twin = !has_earlier_rows(mine, other) && members[i] < at;
      if (!has_earlier_rows(other, mine) && !is_twin) return;
      ++before;
      end = most<int64_t>(end, other.row_end);
      if (other.row_begin < mine.row_begin) {
        end_above = most<int64_t>(end_above, other.row_end);
      } else {
        ++of_row;
      }
    });
    before = team.sum(before), of_row = team.sum(of_row);
    end = team.greatest(most<int64_t>(end, mine.row_end)), end_above = team.greatest(end_above);
    if (team.rank() != 0) continue;
    const int64_t place = sorting.first[side][bucket] + before;
    const bool may_be = of_row == 0 && mine.row_begin > 0 && end_above <= mine.row_begin;
    build.passes[side].slices[place] = mine;
    build.passes[side].ends[place] = static_cast<int32_t>(end);
    build.is_apart[side][place] = !may_be ? kJoined : end_above == mine.row_begin ? kMeets : kApart;
    if (side == 0) sorting.index[place] = at;
  }
}

/// The sixth pass, for one slice of a pass. It checks that the slice shows nothing that one above shows. It also tells
/// where it meets those above, unless none has keys of the slices that begin with it.
template <class Team>
TANGRAM_HOST_DEVICE void check_slice(const Team& team, const SortBuild& build, int side, int32_t at) {
  State& state = *build.state;
  const int32_t num_slices = state.num_slices;
  if (at >= num_slices || (side == 1 && !build.has_backward)) return;
  const Pass& pass = build.passes[side];
  const Slice slice = pass.slices[at];
  const int32_t row = slice.row_begin;
  // Calls `body` for ranges before this one, from the first that reaches down to this row.
  const auto for_each_above = [&](int32_t least_end, const auto& body) {
    const int32_t first = first_of(at, [&](int32_t i) { return pass.ends[i] >= least_end; });
    for (int32_t i = first + team.rank(); i < at; i += team.size()) body(i);
  };
  if (side == 0) {
    const int32_t* const index = build.sorting.index;
    for_each_above(row + 1, [&](int32_t i) {
      if (overlap(pass.slices[i], slice)) note(team, state, most(index[i], index[at]), Problem::kOverlap);
    });
  }
  if (build.is_apart[side][at] != kMeets) return;
  bool is_apart = true;
  for_each_above(row, [&](int32_t i) {
    const Slice above = pass.slices[i];
    if (above.row_end != row) return;
    for (int32_t j = at; is_apart && j < num_slices && pass.slices[j].row_begin == row; ++j) {
      is_apart = above.key_end <= pass.slices[j].key_begin || pass.slices[j].key_end <= above.key_begin;
    }
  });
  is_apart = team.all(is_apart);
  if (team.rank() == 0) build.is_apart[side][at] = is_apart ? kApart : kJoined;
}

/// Reports an error, if there is one.
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

/// The last, by one team: what is wrong, and where tiles begin.
template <class Team>
TANGRAM_HOST_DEVICE void finish_ranges(const Team& team, const Build& build, const Ranges& ranges) {
  State& state = *build.state;
  check_ranges(team, build, ranges);
  const int32_t num_slices = build.has_backward ? state.num_slices : 0;  // 0 where they are refused
  for (int side = 0; side < 2; ++side) {
    const int32_t num_candidates = take_some(
        team, num_slices, [&](int32_t at) { return build.is_apart[side][at] == kApart; },
        [&](int32_t at, int32_t place) { build.candidates[side][place] = build.passes[side].slices[at].row_begin; });
    if (team.rank() == 0) build.num_candidates[side] = num_candidates;
  }
  team.sync();
  begin_tiles(team, build);
}

}  // namespace tangram::schedule::builder
