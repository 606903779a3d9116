// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Lists of the image of block-sparse masks (block_lists.hpp) that a KV-stationary backward pass reads. A column is a
// block of keys of one head group; a second bitmap says which blocks of queries see it. Its tiles of 128 keys visit the
// same runs of them, but for the diagonal of causal blocks.
#pragma once

#include <cstdint>

#include "schedule/builder/blocks.hpp"
#include "schedule/builder/pack_tile.hpp"
#include "schedule/key_image.hpp"

namespace tangram::schedule::builder {

/// Pointers and sizes that are the same for every mask of a buffer.
struct KeyBuild {
  bool rest = false;  ///< else the backward pass gathers, and all that follows is nothing
  KeyTileSchedule schedule;
  int32_t num_q_tiles = 0;
  int32_t seqlen_q = 0, seqlen_k = 0;
  // To work in: of columns of the smallest blocks.
  uint32_t* words = nullptr;     ///< [columns, words of a column]
  int32_t* first_run = nullptr;  ///< [masks * tiles + 1] how many runs a tile of a mask has, then where they begin
  int32_t* visits = nullptr;     ///< [masks * tiles] query tiles
  // The image.
  WorkTile* work_tiles = nullptr;
  TileRange* runs = nullptr;
  RangeQueryTiles* run_tiles = nullptr;
  QueryTile* q_tiles = nullptr;

  TANGRAM_HOST_DEVICE int32_t all_tiles() const { return schedule.masks * schedule.num_tiles; }
};

/// Columns of the blocks of a table.
struct BlockColumns {
  int32_t block = 1;
  bool causal = false;
  int32_t per_mask = 0, words_per_column = 0;

  /// One word of a column, without blocks that the diagonal hides.
  TANGRAM_HOST_DEVICE uint32_t bits(const KeyBuild& build, int32_t column, int32_t word) const {
    const uint32_t all = build.words[int64_t{column} * words_per_column + word];
    const int32_t diagonal = column % per_mask - word * 32;  // its bit
    if (!causal || diagonal <= 0) return all;
    return diagonal > 31 ? 0 : all & ~((uint32_t{1} << diagonal) - 1);
  }
  TANGRAM_HOST_DEVICE bool has(const KeyBuild& build, int32_t column, int32_t row) const {
    return (bits(build, column, row / 32) >> row % 32 & 1) != 0;
  }
};

template <class Team>
TANGRAM_HOST_DEVICE void clear_columns(const Team& team, const KeyBuild& build, const BlockColumns& columns,
                                       int32_t first, int32_t step) {
  const int64_t count = int64_t{build.schedule.masks} * columns.per_mask * columns.words_per_column;
  for (int64_t i = first + team.rank(); build.rest && i < count; i += step) build.words[i] = 0;
}

/// Marks that a block of queries of a mask sees a block of keys.
template <class Team>
TANGRAM_HOST_DEVICE void mark_column(const Team& team, const KeyBuild& build, const BlockColumns& columns, int32_t mask,
                                     int32_t row, int32_t key_block) {
  if (!build.rest) return;
  const int64_t column = int64_t{mask} * columns.per_mask + key_block;
  team.set_bits(build.words + column * columns.words_per_column + row / 32, uint32_t{1} << row % 32);
}

/// Query tiles that the tiles of a column visit.
template <class Team>
TANGRAM_HOST_DEVICE void count_column(const Team& team, const KeyBuild& build, const BlockColumns& columns,
                                      int32_t column) {
  const int32_t mask = column / columns.per_mask, key_block = column % columns.per_mask;
  const auto word = [&](int32_t at) { return columns.bits(build, column, at); };
  int64_t blocks = 0, runs = 0;
  for_each(team, columns.words_per_column, [&](int32_t at) {
    blocks += count_bits(word(at));
    runs += count_bits(run_begins(word, at));
  });
  blocks = team.sum(blocks), runs = team.sum(runs);
  const int32_t last_row = tiles_of(build.seqlen_q, columns.block) - 1;
  int64_t visits = blocks * (columns.block / kKeyStepQueries);
  if (last_row >= 0 && columns.has(build, column, last_row)) {
    visits += build.num_q_tiles - (int64_t{last_row} + 1) * (columns.block / kKeyStepQueries);
  }
  const bool has_diagonal = columns.causal && columns.has(build, column, key_block);
  const int32_t each = columns.block / kKeyTileRows, first = key_block * each;
  for_each(team, least(each, build.schedule.num_tiles - first), [&](int32_t i) {
    const int64_t at = int64_t{mask} * build.schedule.num_tiles + first + i;
    build.first_run[at] = static_cast<int32_t>(runs);
    build.visits[at] = static_cast<int32_t>(visits) - (has_diagonal ? i * (kKeyTileRows / kKeyStepQueries) : 0);
  });
}

/// A refused mask is fully masked.
template <class Team>
TANGRAM_HOST_DEVICE void place_columns(const Team& team, const KeyBuild& build, bool refused) {
  if (!build.rest) return;
  if (refused) {
    for_each(team, build.all_tiles(), [&](int32_t i) { build.first_run[i] = build.visits[i] = 0; });
    team.sync();
  }
  sums_before(team, build.first_run, build.all_tiles());
}

/// The runs of a tile, of those of a refused mask none.
template <class Team>
TANGRAM_HOST_DEVICE void fill_key_runs(const Team& team, const KeyBuild& build, const BlockColumns& columns,
                                       int32_t at) {
  const int32_t mask = at / build.schedule.num_tiles, row_begin = at % build.schedule.num_tiles * kKeyTileRows;
  if (build.first_run[at] == build.first_run[at + 1]) return;
  const int32_t column = mask * columns.per_mask + row_begin / columns.block;
  const auto word = [&](int32_t i) { return columns.bits(build, column, i); };
  int32_t before = build.first_run[at];
  for (int32_t from = 0; from < columns.words_per_column; from += team.size()) {
    const int32_t i = from + team.rank();
    uint32_t begins = i < columns.words_per_column ? run_begins(word, i) : 0;
    int32_t total;
    int32_t place = before + team.sum_before(count_bits(begins), total);
    before += total;
    for (; begins != 0; begins &= begins - 1, ++place) {
      const int32_t bit = i * 32 + lowest_bit(begins);
      Slice slice;
      slice.row_begin = row_begin;
      slice.row_end = least(row_begin + kKeyTileRows, build.seqlen_k);
      slice.key_begin = bit * columns.block;
      slice.key_end = static_cast<int32_t>(
          least<int64_t>(int64_t{end_of_run(word, columns.words_per_column, bit)} * columns.block, build.seqlen_q));
      const TileRange run = closed_form(canonical(slice, columns.causal ? 0 : kOpenMin, kOpenMax), true);
      build.runs[place] = run;
      build.run_tiles[place] = {run.k_begin / kKeyStepQueries, tiles_of(run.k_end, kKeyStepQueries), 0};
    }
  }
}

/// The work tiles of a tile of a mask.
template <class Team>
TANGRAM_HOST_DEVICE void fill_key_work_tiles(const Team& team, const KeyBuild& build, int32_t at) {
  const KeyTileSchedule& schedule = build.schedule;
  const int32_t mask = at / schedule.num_tiles, tile = at % schedule.num_tiles, visits = build.visits[at];
  const int32_t* const of_mask = build.visits + int64_t{mask} * schedule.num_tiles;
  int64_t before = 0;
  for_each(team, schedule.num_tiles, [&](int32_t i) {
    const int32_t more = of_mask[i] - visits;
    before += more > 0 || (more == 0 && i < tile);
  });
  before = team.sum(before);
  WorkTile work_tile;
  work_tile.row_begin = tile * kKeyTileRows;
  work_tile.row_end = least(work_tile.row_begin + kKeyTileRows, build.seqlen_k);
  work_tile.run_begin = build.first_run[at];
  work_tile.run_end = build.first_run[at + 1];
  for (int32_t word = 0; word < 4; ++word) {  // all rows or none, and those behind the last key
    const int32_t rows = visits > 0 ? 0 : work_tile.row_end - work_tile.row_begin - word * 32;
    work_tile.covered[word] = rows >= 32 ? 0 : rows <= 0 ? ~uint32_t{0} : ~((uint32_t{1} << rows) - 1);
  }
  if (visits == 0) work_tile.flags = kWorkTileZeroRows;
  for_each(team, schedule.work_tiles_of_tile(), [&](int32_t i) {
    build.work_tiles[schedule.place(mask, i, before)] = schedule.work_tile(work_tile, mask, i, visits);
  });
}

inline constexpr int32_t kQueryTilesOfPart = 32;

/// How many calls of fill_key_part() write the lists.
TANGRAM_HOST_DEVICE inline int32_t num_key_parts(const KeyBuild& build) {
  return build.rest ? build.all_tiles() + tiles_of(build.num_q_tiles, kQueryTilesOfPart) : 0;
}

template <class Team>
TANGRAM_HOST_DEVICE void fill_key_part(const Team& team, const KeyBuild& build, const BlockColumns& columns,
                                       int32_t part) {
  if (part < build.all_tiles()) {
    fill_key_runs(team, build, columns, part);
    fill_key_work_tiles(team, build, part);
    return;
  }
  const int32_t first = (part - build.all_tiles()) * kQueryTilesOfPart;
  for_each(team, least(kQueryTilesOfPart, build.num_q_tiles - first), [&](int32_t i) {
    const int32_t begin = (first + i) * kKeyStepQueries;
    build.q_tiles[first + i] = {begin, least(begin + kKeyStepQueries, build.seqlen_q)};
  });
}

}  // namespace tangram::schedule::builder
