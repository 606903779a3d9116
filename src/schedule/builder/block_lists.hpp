// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The image of chosen blocks for kernels that gather (NOTE [block image]), or that are KV-stationary backward
// (key_lists.hpp), from a table for each head group. A line is a block of queries of one head group. A bitmap has the
// blocks of keys that it sees; its tiles list their groups of 16 keys in the order of keys. In steps, each of which all
// teams have done before the next begins: clear, mark, count, place, fill.
#pragma once

#include <cstdint>

#include "schedule/block_image.hpp"
#include "schedule/builder/blocks.hpp"
#include "schedule/builder/key_lists.hpp"
#include "schedule/builder/pack_tile.hpp"

namespace tangram::schedule::builder {

/// State that changes from mask to mask; of any content at first, except `report`.
struct BlockState {
  Report report;
  uint32_t first_problem;
  bool refused;
};

/// Pointers and sizes that are the same for every mask of a buffer.
struct BlockBuild {
  BlockState* state = nullptr;
  bool has_forward = false, gathers = true;
  bool has_backward = false;  ///< that gathers
  KeyBuild keys;              ///< of a KV-stationary one
  int32_t seqlen_q = 0, seqlen_k = 0;
  int32_t tile_rows = 0;  ///< of the backward pass
  RegularTiles tiles[2];  ///< of each pass
  int32_t num_tiles[2] = {};
  int32_t head_groups = 1;         ///< masks
  int32_t listed_head_groups = 1;  ///< for which work tiles are listed, as many for each mask
  int32_t sections[2] = {1, 1};
  // To work in: of lines of the smallest blocks.
  uint32_t* words = nullptr;       ///< [lines, words of a line]
  int32_t* num_full = nullptr;     ///< [lines] groups of keys that all their rows see
  int32_t* first_group = nullptr;  ///< [lines + 1] how many are listed, then where the list begins
  int32_t* first_run = nullptr;    ///< [lines + 1] likewise of runs that are not gathered, of all tiles of the line
  uint8_t* has_diagonal = nullptr;
  int32_t* costs[2] = {};  ///< [head_groups, num_tiles] of each pass: steps, groups
  // The image.
  MaskTile* forward_work_tiles = nullptr;
  int32_t* work_tile_groups = nullptr;
  GroupWorkTile* backward_work_tiles = nullptr;
  TileRange* runs = nullptr;
  GroupMask* diagonal_masks = nullptr;
  int32_t* groups = nullptr;
  int32_t groups_index = 0, masks_index = 0;  ///< where these arrays begin in the image, in entries
};

/// A table, and what lines are with blocks of its size.
struct BlockLists : BlockIndices {
  int32_t lines_per_mask = 0, num_lines = 0, words_per_line = 0;
  BlockColumns columns;

  TANGRAM_HOST_DEVICE int32_t groups_of(const BlockBuild& build, int32_t key_block) const {
    const int64_t begin = int64_t{key_block} * block;
    return static_cast<int32_t>(least<int64_t>(block, build.seqlen_k - begin)) / kGroupKeys;
  }
  TANGRAM_HOST_DEVICE uint32_t bits(const BlockBuild& build, int32_t line, int32_t word) const {
    return build.words[int64_t{line} * words_per_line + word];
  }
  /// Word of visible blocks before the block on the diagonal, if blocks are causal.
  TANGRAM_HOST_DEVICE uint32_t full_bits(const BlockBuild& build, int32_t line, int32_t word) const {
    const uint32_t all = bits(build, line, word);
    const int32_t diagonal = line % lines_per_mask - word * 32;  // its bit
    return !causal || diagonal >= 32 ? all : diagonal <= 0 ? 0 : all & ((uint32_t{1} << diagonal) - 1);
  }
  /// Word of visible blocks up to the block on the diagonal, if blocks are causal.
  TANGRAM_HOST_DEVICE uint32_t seen_bits(const BlockBuild& build, int32_t line, int32_t word) const {
    const uint32_t all = bits(build, line, word);
    return causal ? up_to_diagonal(all, line % lines_per_mask, word) : all;
  }
  /// A block in front of the first, or behind the last, is not.
  TANGRAM_HOST_DEVICE bool is_full(const BlockBuild& build, int32_t line, int32_t key_block) const {
    return key_block >= 0 && key_block < num_key_blocks &&
           (full_bits(build, line, key_block / 32) >> key_block % 32 & 1) != 0;
  }
};

/// Queries of a tile of a pass, counted in one mask.
struct BlockTile {
  int32_t row_begin = 0, row_end = 0, line = 0;
};
TANGRAM_HOST_DEVICE inline BlockTile block_tile(const BlockBuild& build, const BlockLists& lists, int pass,
                                                int32_t mask, int32_t tile) {
  const int32_t begin = build.tiles[pass].begin(tile);
  return {begin, build.tiles[pass].begin(tile + 1), mask * lists.lines_per_mask + begin / lists.block};
}

/// The tiles of one line of blocks.
struct TilesOfLine {
  int32_t first = 0, end = 0;
};
TANGRAM_HOST_DEVICE inline TilesOfLine tiles_of_line(const BlockBuild& build, const BlockLists& lists, int pass,
                                                     int32_t line) {
  const int32_t begin = line % lists.lines_per_mask * lists.block;
  return {build.tiles[pass].count(begin), build.tiles[pass].count(least(begin + lists.block, build.seqlen_q))};
}

/// Part of the block on the diagonal that a tile sees: groups that all rows see, then groups that some rows see.
struct Diagonal {
  int32_t begin = 0;  ///< first key
  int32_t num_full = 0, num_masked = 0;
};
TANGRAM_HOST_DEVICE inline Diagonal diagonal_of(const BlockBuild& build, const BlockLists& lists,
                                                const BlockTile& tile) {
  Diagonal diagonal;
  diagonal.begin = tile.row_begin / lists.block * lists.block;
  if (build.has_diagonal[tile.line] == 0) return diagonal;
  diagonal.num_full = (tile.row_begin - diagonal.begin) / kGroupKeys;
  diagonal.num_masked = tiles_of(tile.row_end - diagonal.begin, kGroupKeys) - diagonal.num_full;
  return diagonal;
}

/// The first step, for all words.
template <class Team>
TANGRAM_HOST_DEVICE void clear_lists(const Team& team, const BlockBuild& build, const BlockLists& lists, int32_t first,
                                     int32_t step) {
  if (first == 0 && team.rank() == 0) build.state->first_problem = kNoProblem, build.state->refused = false;
  const int64_t count = int64_t{lists.num_lines} * lists.words_per_line;
  for (int64_t i = first + team.rank(); i < count; i += step) build.words[i] = 0;
  clear_columns(team, build.keys, lists.columns, first, step);
}

/// The second, for one entry.
template <class Team>
TANGRAM_HOST_DEVICE void mark_choice(const Team& team, const BlockBuild& build, const BlockLists& lists,
                                     int64_t entry) {
  const auto line = static_cast<int32_t>(entry / lists.width), i = static_cast<int32_t>(entry % lists.width);
  const int64_t index = lists.at(entry);
  check_entry(team, lists, &build.state->first_problem, line, i);
  if (index < 0 || index >= lists.num_key_blocks) return;
  const uint32_t bit = uint32_t{1} << index % 32;
  if ((team.set_bits(build.words + int64_t{line} * lists.words_per_line + index / 32, bit) & bit) != 0) {
    team.lower(&build.state->first_problem, problem_at(line, Problem::kBlockRepeats));
  }
  mark_column(team, build.keys, lists.columns, line / lists.lines_per_mask, line % lists.lines_per_mask,
              static_cast<int32_t>(index));
}

/// Cost of the tiles of a line.
template <class Team>
TANGRAM_HOST_DEVICE void count_line_of_choices(const Team& team, const BlockBuild& build, const BlockLists& lists,
                                               int32_t line) {
  const int32_t row = line % lists.lines_per_mask, mask = line / lists.lines_per_mask;
  int64_t blocks = 0, has_last = 0, runs = 0;
  for_each(team, lists.words_per_line, [&](int32_t at) { blocks += count_bits(lists.full_bits(build, line, at)); });
  if (team.rank() == 0) has_last = lists.is_full(build, line, lists.num_key_blocks - 1);
  if (!build.gathers) {
    const auto word = [&](int32_t at) { return lists.seen_bits(build, line, at); };
    for_each(team, lists.words_per_line, [&](int32_t at) { runs += count_bits(run_begins(word, at)); });
  }
  blocks = team.sum(blocks), has_last = team.sum(has_last), runs = team.sum(runs);
  const TilesOfLine forward = tiles_of_line(build, lists, 0, line);
  int64_t num_full = blocks * (lists.block / kGroupKeys);
  if (has_last != 0) num_full += lists.groups_of(build, lists.num_key_blocks - 1) - lists.block / kGroupKeys;
  const auto full = static_cast<int32_t>(num_full);
  const bool has_diagonal = lists.causal && (lists.bits(build, line, row / 32) >> row % 32 & 1) != 0;
  if (team.rank() == 0) {
    build.num_full[line] = full;
    build.first_group[line] = full + (has_diagonal ? lists.groups_of(build, row) : 0);
    build.has_diagonal[line] = has_diagonal ? 1 : 0;
    build.first_run[line] = static_cast<int32_t>(runs) * (forward.end - forward.first);
  }
  team.sync();
  for (int pass = 0; pass < 2; ++pass) {
    const auto [first, end] = tiles_of_line(build, lists, pass, line);
    for_each(team, end - first, [&](int32_t i) {
      const BlockTile tile = block_tile(build, lists, pass, mask, first + i);
      const Diagonal diagonal = diagonal_of(build, lists, tile);
      const int32_t masked_keys = diagonal.num_masked > 0 ? tile.row_end - diagonal.begin : 0;
      build.costs[pass][int64_t{mask} * build.num_tiles[pass] + first + i] =
          pass == 0 ? tiles_of(full, kBlockStepKeys / kGroupKeys) + tiles_of(masked_keys, kBlockStepKeys)
                    : full + diagonal.num_full + diagonal.num_masked;
    });
  }
}

/// How many calls of count_choice() count all.
TANGRAM_HOST_DEVICE inline int64_t num_counts(const BlockBuild& build, const BlockLists& lists) {
  return int64_t{lists.num_lines} + (build.keys.rest ? int64_t{build.head_groups} * lists.columns.per_mask : 0);
}

/// The third, for one line or column.
template <class Team>
TANGRAM_HOST_DEVICE void count_choice(const Team& team, const BlockBuild& build, const BlockLists& lists, int64_t at) {
  if (at < lists.num_lines) {
    count_line_of_choices(team, build, lists, static_cast<int32_t>(at));
  } else if (at < num_counts(build, lists)) {
    count_column(team, build.keys, lists.columns, static_cast<int32_t>(at - lists.num_lines));
  }
}

/// The fourth, by one team: what is wrong, and where lines list their groups.
template <class Team>
TANGRAM_HOST_DEVICE void place_choices(const Team& team, const BlockBuild& build, const BlockLists& lists) {
  BlockState& state = *build.state;
  const uint32_t first = state.first_problem;
  team.sync();
  if (first != kNoProblem) {
    const auto line = static_cast<int32_t>(first / kProblems);
    const int32_t entry = find_entry(team, lists, &state.first_problem);
    if (team.rank() == 0) {
      state.report = {state.report.num_refused + 1,
                      line / lists.lines_per_mask,
                      static_cast<Problem>(first % kProblems),
                      line % lists.lines_per_mask,
                      lists.at(int64_t{line} * lists.width + entry),
                      lists.num_key_blocks};
      state.refused = true;
    }
    for_each(team, lists.num_lines, [&](int32_t i) {
      build.num_full[i] = build.first_group[i] = build.first_run[i] = 0;
      build.has_diagonal[i] = 0;
    });
    for (int pass = 0; pass < 2; ++pass) {
      for_each(team, build.head_groups * build.num_tiles[pass], [&](int32_t i) { build.costs[pass][i] = 0; });
    }
    team.sync();
  }
  sums_before(team, build.first_group, lists.num_lines);
  sums_before(team, build.first_run, lists.num_lines);
  place_columns(team, build.keys, first != kNoProblem);
}

/// Lists the groups of a line, and marks three that follow without a gap (mark_large_boxes). Marks do not reach into
/// the block on the diagonal, of which tiles list a part.
template <class Team>
TANGRAM_HOST_DEVICE void fill_groups(const Team& team, const BlockBuild& build, const BlockLists& lists, int32_t line) {
  if (build.state->refused) return;
  const auto is_listed = [&](int32_t key) {
    return key < build.seqlen_k && lists.is_full(build, line, key / lists.block);
  };
  int32_t* const groups = build.groups + build.first_group[line];
  int32_t before = 0;  // blocks
  for (int32_t from = 0; from < lists.words_per_line; from += team.size()) {
    const int32_t at = from + team.rank();
    uint32_t bits = at < lists.words_per_line ? lists.full_bits(build, line, at) : 0;
    int32_t total;
    int32_t place = (before + team.sum_before(count_bits(bits), total)) * (lists.block / kGroupKeys);
    before += total;
    for (; bits != 0; bits &= bits - 1) {
      const int32_t key_block = at * 32 + lowest_bit(bits), count = lists.groups_of(build, key_block);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t key = key_block * lists.block + i * kGroupKeys;
        bool follow = true;
        for (int32_t j = 1; j < 4; ++j) follow = follow && (i + j < count || is_listed(key + j * kGroupKeys));
        groups[place++] = follow ? ~key : key;
      }
    }
  }
  if (build.has_diagonal[line] == 0) return;
  const int32_t row = line % lists.lines_per_mask;
  for_each(team, lists.groups_of(build, row),
           [&](int32_t i) { groups[build.num_full[line] + i] = row * lists.block + i * kGroupKeys; });
}

/// The place of a work tile among those of its pass: see NOTE [block image].
template <class Team>
TANGRAM_HOST_DEVICE int64_t place_of_work_tile(const Team& team, const BlockBuild& build, int pass, int32_t head_group,
                                               int32_t tile) {
  const int32_t groups_per_mask = build.listed_head_groups / build.head_groups;
  const int32_t* const costs = build.costs[pass];
  const int32_t num_tiles = build.num_tiles[pass];
  const int32_t cost = costs[int64_t{head_group / groups_per_mask} * num_tiles + tile];
  const int32_t section = build.sections[pass], begin = head_group / section * section;
  const int32_t end = least(begin + section, build.listed_head_groups);
  int64_t before = 0;
  for (int32_t other = begin; other < end; ++other) {
    const int32_t* const of_mask = costs + int64_t{other / groups_per_mask} * num_tiles;
    for_each(team, num_tiles, [&](int32_t i) {
      const int32_t more = of_mask[i] - cost;
      before += more > 0 || (more == 0 && (i < tile || (i == tile && other < head_group)));
    });
  }
  return int64_t{begin} * num_tiles + team.sum(before);
}

/// Writes the runs of a forward tile, by one thread: a gathered run, and keys on the diagonal. Returns how many runs.
TANGRAM_HOST_DEVICE inline int32_t fill_block_runs(const BlockBuild& build, const BlockLists& lists,
                                                   const BlockTile& tile, TileRange* runs) {
  int32_t count = 0;
  const int32_t keys = build.num_full[tile.line] * kGroupKeys;
  if (keys > 0) {
    TileRange run;
    run.k_end = run.full_end = run.slice_k_end = keys;
    run.row_begin = tile.row_begin;
    run.row_end = tile.row_end;
    run.min_diag = -tile.row_end;  // neither binds
    run.max_diag = keys - tile.row_begin;
    run.group_begin = build.groups_index + build.first_group[tile.line];
    runs[count++] = run;
  }
  const Diagonal diagonal = diagonal_of(build, lists, tile);
  if (diagonal.num_masked > 0) {
    TileRange run;
    run.k_begin = run.slice_k_begin = diagonal.begin;
    run.k_end = run.slice_k_end = tile.row_end;
    run.full_begin = diagonal.begin;  // and the first key of the tile's own, which its first row sees
    run.full_end = tile.row_begin + 1;
    run.row_begin = tile.row_begin;
    run.row_end = tile.row_end;
    run.min_diag = diagonal.begin - tile.row_end;
    run.max_diag = 0;
    runs[count++] = run;
  }
  return count;
}

/// Where the runs of a tile are that are not gathered.
struct RunPlaces {
  int32_t begin = 0, end = 0;
};
TANGRAM_HOST_DEVICE inline RunPlaces places_of_runs(const BlockBuild& build, const BlockLists& lists, int32_t line,
                                                    int32_t tile) {
  const TilesOfLine tiles = tiles_of_line(build, lists, 0, line);
  const int32_t count = (build.first_run[line + 1] - build.first_run[line]) / (tiles.end - tiles.first);
  const int32_t begin = build.first_run[line] + (tile - tiles.first) * count;
  return {begin, begin + count};
}

/// Fills them in, each a run of blocks, up to the diagonal.
template <class Team>
TANGRAM_HOST_DEVICE void fill_plain_runs(const Team& team, const BlockBuild& build, const BlockLists& lists,
                                         const BlockTile& tile, TileRange* runs) {
  const auto word = [&](int32_t at) { return lists.seen_bits(build, tile.line, at); };
  int32_t before = 0;
  for (int32_t from = 0; from < lists.words_per_line; from += team.size()) {
    const int32_t at = from + team.rank();
    uint32_t begins = at < lists.words_per_line ? run_begins(word, at) : 0;
    int32_t total;
    int32_t place = before + team.sum_before(count_bits(begins), total);
    before += total;
    for (; begins != 0; begins &= begins - 1) {
      const int32_t bit = at * 32 + lowest_bit(begins);
      Slice slice;
      slice.row_begin = tile.row_begin;
      slice.row_end = tile.row_end;
      slice.key_begin = bit * lists.block;
      slice.key_end = static_cast<int32_t>(
          least<int64_t>(int64_t{end_of_run(word, lists.words_per_line, bit)} * lists.block, build.seqlen_k));
      runs[place++] = closed_form(canonical(slice, kOpenMin, lists.causal ? 0 : kOpenMax), true);
    }
  }
}

/// The work tiles of the at-th tile of each pass for a head group.
template <class Team>
TANGRAM_HOST_DEVICE void fill_block_work_tiles(const Team& team, const BlockBuild& build, const BlockLists& lists,
                                               int32_t head_group, int32_t at) {
  const int32_t groups_per_mask = build.listed_head_groups / build.head_groups, mask = head_group / groups_per_mask;
  if (build.has_forward && at < build.num_tiles[0]) {
    const BlockTile tile = block_tile(build, lists, 0, mask, at);
    const int64_t place = place_of_work_tile(team, build, 0, head_group, at);
    const bool is_first = head_group % groups_per_mask == 0;  // every head group of a mask would write the same runs
    RunPlaces run;
    if (!build.gathers) {
      run = places_of_runs(build, lists, tile.line, at);
      if (is_first && run.begin < run.end) fill_plain_runs(team, build, lists, tile, build.runs + run.begin);
    } else if (team.rank() == 0) {
      run.begin = (mask * build.num_tiles[0] + at) * kBlockRunsPerTile;
      TileRange runs[kBlockRunsPerTile];
      const int32_t count = fill_block_runs(build, lists, tile, runs);
      for (int32_t r = 0; is_first && r < count; ++r) build.runs[run.begin + r] = runs[r];
      run.end = run.begin + count;
    }
    if (team.rank() == 0) {
      build.forward_work_tiles[place] = {tile.row_begin, tile.row_end, run.begin, run.end};
      build.work_tile_groups[place] = head_group;
    }
  }
  if (build.has_backward && at < build.num_tiles[1]) {
    const BlockTile tile = block_tile(build, lists, 1, mask, at);
    const int64_t place = place_of_work_tile(team, build, 1, head_group, at);
    if (team.rank() == 0) {
      const Diagonal diagonal = diagonal_of(build, lists, tile);
      const int32_t in_group = tile.row_begin % kGroupKeys / build.tile_rows;  // of tiles shorter than a group
      build.backward_work_tiles[place] = {tile.row_begin,
                                          tile.row_end,
                                          build.groups_index + build.first_group[tile.line],
                                          build.num_full[tile.line] + diagonal.num_full + diagonal.num_masked,
                                          diagonal.num_masked,
                                          build.masks_index + in_group,
                                          build.head_groups > 1 ? head_group : -1,
                                          0};
    }
  }
}

/// Mask `at` of the groups on the diagonal: that of the at-th group of a tile, or, if tiles are shorter than a group,
/// of the at-th tile in it. The same for all tiles.
template <class Team>
TANGRAM_HOST_DEVICE void fill_diagonal_mask(const Team& team, const BlockBuild& build, int32_t at) {
  const bool is_long = build.tile_rows >= kGroupKeys;
  const int32_t count = is_long ? build.tile_rows / kGroupKeys : kGroupKeys / build.tile_rows;
  if (at >= count) return;
  const int32_t pack = kBlockTileRows / build.tile_rows;
  // The key of packed row r that is the last which it sees, counted in the group.
  const int32_t first = is_long ? -at * kGroupKeys : at * build.tile_rows;
  for_each(team, kGroupKeys * 4, [&](int32_t i) {
    const int32_t key = i / 4, word = i % 4;
    uint32_t bits = 0;
    for (int32_t bit = 0; bit < 32; ++bit) {
      bits |= static_cast<uint32_t>(key <= first + (word * 32 + bit) / pack) << bit;
    }
    build.diagonal_masks[at].keys[key].words[word] = bits;
  });
}

/// Work-tile parts of each head group: as many as the pass with more tiles has.
TANGRAM_HOST_DEVICE inline int32_t work_tile_parts(const BlockBuild& build) {
  return most(build.num_tiles[0], build.num_tiles[1]);
}

/// How many calls of fill_block_part() write an image.
TANGRAM_HOST_DEVICE inline int64_t num_block_parts(const BlockBuild& build, const BlockLists& lists) {
  return int64_t{lists.num_lines} + int64_t{build.listed_head_groups} * work_tile_parts(build) +
         (build.keys.rest ? num_key_parts(build.keys) : kDiagonalMasks);
}

/// The fifth.
template <class Team>
TANGRAM_HOST_DEVICE void fill_block_part(const Team& team, const BlockBuild& build, const BlockLists& lists,
                                         int64_t part) {
  const int32_t of_group = work_tile_parts(build);
  const int64_t work_tiles = int64_t{build.listed_head_groups} * of_group;
  if (part < work_tiles) {
    const auto head_group = static_cast<int32_t>(part / of_group);
    fill_block_work_tiles(team, build, lists, head_group, static_cast<int32_t>(part % of_group));
  } else if (part < work_tiles + lists.num_lines) {
    fill_groups(team, build, lists, static_cast<int32_t>(part - work_tiles));
  } else if (part < num_block_parts(build, lists)) {
    const auto at = static_cast<int32_t>(part - work_tiles - lists.num_lines);
    if (build.keys.rest) fill_key_part(team, build.keys, lists.columns, at);
    if (build.has_backward) fill_diagonal_mask(team, build, at);
  }
}

}  // namespace tangram::schedule::builder
