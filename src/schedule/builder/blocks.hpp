// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Slices of chosen blocks of keys. A bitmap says which blocks are chosen. Its rows are cut into runs of blocks for the
// forward pass, its columns for the backward pass, so that each walks few runs. No slice is longer than a block in the
// other direction. In steps, each of which all teams have done before the next begins.
#pragma once

#include <bit>
#include <cstdint>

#include "schedule/builder/documents.hpp"
#include "schedule/builder/places.hpp"

namespace tangram::schedule::builder {

TANGRAM_HOST_DEVICE inline int32_t count_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return std::popcount(word);
#endif
}
/// Index of the lowest set bit of a word that is not 0.
TANGRAM_HOST_DEVICE inline int32_t lowest_bit(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(word)) - 1;
#else
  return std::countr_zero(word);
#endif
}

/// The bits of a word with which runs begin; `word(i)`: of a line.
template <class Word>
TANGRAM_HOST_DEVICE uint32_t run_begins(const Word& word, int32_t at) {
  const uint32_t bits = word(at);
  return bits & ~(bits << 1 | (at > 0 ? word(at - 1) >> 31 : 0));
}
/// The bit behind the run that begins at `bit` of a line of so many words.
template <class Word>
TANGRAM_HOST_DEVICE int32_t end_of_run(const Word& word, int32_t num_words, int32_t bit) {
  int32_t at = bit / 32;
  uint32_t zeros = ~word(at) & ~uint32_t{0} << bit % 32;
  while (zeros == 0 && ++at < num_words) zeros = ~word(at);
  return zeros == 0 ? at * 32 : at * 32 + lowest_bit(zeros);
}
/// Bits of word `at` of line `line` up to the diagonal.
TANGRAM_HOST_DEVICE inline uint32_t up_to_diagonal(uint32_t bits, int32_t line, int32_t at) {
  const int32_t diagonal = line - at * 32;  // its bit
  return diagonal >= 31 ? bits : diagonal < 0 ? 0 : bits & ((uint32_t{2} << diagonal) - 1);
}

/// One of the two views of the bitmap: lines are blocks of queries with bits for blocks of keys, or the other way
/// round.
struct BlockLines {
  uint32_t* words = nullptr;    ///< [num_lines, words_per_line]
  int32_t* num_runs = nullptr;  ///< [num_lines + 1] then of all lines before
  int32_t* is_apart = nullptr;  ///< [num_lines] whether no other line before it has anything in common with it
  int32_t num_lines = 0, words_per_line = 0;
};

/// A table of chosen blocks of keys.
struct BlockIndices {
  const void* indices = nullptr;  ///< [num_rows, width], padded by -1 at the end
  bool is_wide = false;           ///< of 64 bits, else 32
  int32_t width = 0, block = 0;
  bool causal = false;  ///< and no key behind the query; of sequences of one length
  int32_t num_key_blocks = 0;

  TANGRAM_HOST_DEVICE int64_t at(int64_t entry) const {
    return is_wide ? static_cast<const int64_t*>(indices)[entry] : static_cast<const int32_t*>(indices)[entry];
  }
  /// Whether an entry of a row is wrong so.
  TANGRAM_HOST_DEVICE bool has(Problem problem, int64_t row, int32_t i) const {
    const int64_t first = row * width, index = at(first + i);
    if (problem == Problem::kBlockOutside) return index < -1 || index >= num_key_blocks;
    if (problem == Problem::kBlockBehindPadding) return i > 0 && index != -1 && at(first + i - 1) == -1;
    for (int32_t j = 0; j < i; ++j) {
      if (index != -1 && at(first + j) == index) return true;
    }
    return false;
  }
};

/// Notes what is wrong with an entry of a row, but for repetitions.
template <class Team>
TANGRAM_HOST_DEVICE void check_entry(const Team& team, const BlockIndices& blocks, uint32_t* first_problem, int32_t row,
                                     int32_t i) {
  for (const Problem problem : {Problem::kBlockOutside, Problem::kBlockBehindPadding}) {
    if (blocks.has(problem, row, i)) team.lower(first_problem, problem_at(row, problem));
  }
}

/// The first entry of the row in which `first_problem` is; it is of no more use then. By one team that has met.
template <class Team>
TANGRAM_HOST_DEVICE int32_t find_entry(const Team& team, const BlockIndices& blocks, uint32_t* first_problem) {
  const uint32_t first = *first_problem;
  const auto row = static_cast<int32_t>(first / kProblems);
  const auto problem = static_cast<Problem>(first % kProblems);
  team.sync();
  if (team.rank() == 0) *first_problem = kNoProblem;
  team.sync();
  for_each(team, blocks.width, [&](int32_t i) {
    if (blocks.has(problem, row, i)) team.lower(first_problem, static_cast<uint32_t>(i));
  });
  team.sync();
  return static_cast<int32_t>(*first_problem);
}

/// Blocks of queries see those blocks of keys that stand in their row.
struct Blocks : BlockIndices {
  BlockLines lines[2];  ///< of queries, of keys

  /// The first row of a block, or behind the last one the number of rows.
  TANGRAM_HOST_DEVICE int32_t begin_of(int32_t number, int32_t rows) const {
    return static_cast<int32_t>(least<int64_t>(int64_t{number} * block, rows));
  }
  /// One word of a line, without blocks that the diagonal hides.
  TANGRAM_HOST_DEVICE uint32_t word(int side, int32_t line, int32_t word) const {
    const uint32_t bits = lines[side].words[int64_t{line} * lines[side].words_per_line + word];
    if (!causal) return bits;
    if (side == 0) return up_to_diagonal(bits, line, word);
    const int32_t diagonal = line - word * 32;  // its bit
    return diagonal <= 0 ? bits : diagonal > 31 ? 0 : bits & ~((uint32_t{1} << diagonal) - 1);
  }
  /// The bits of a word with which runs begin.
  TANGRAM_HOST_DEVICE uint32_t begins(int side, int32_t line, int32_t at) const {
    return run_begins([&](int32_t i) { return word(side, line, i); }, at);
  }
  /// The bit behind the run that begins at `bit`.
  TANGRAM_HOST_DEVICE int32_t end_of(int side, int32_t line, int32_t bit) const {
    return end_of_run([&](int32_t i) { return word(side, line, i); }, lines[side].words_per_line, bit);
  }
};

/// The first step, for all words of both views.
template <class Team>
TANGRAM_HOST_DEVICE void clear_blocks(const Team& team, const Build& build, const Blocks& blocks, int32_t first,
                                      int32_t step) {
  if (first == 0) begin_build(team, build);
  for (const BlockLines& lines : blocks.lines) {
    const int64_t count = int64_t{lines.num_lines} * lines.words_per_line;
    for (int64_t i = first + team.rank(); i < count; i += step) lines.words[i] = 0;
  }
}

/// The second, for one entry.
template <class Team>
TANGRAM_HOST_DEVICE void mark_block(const Team& team, const Build& build, const Blocks& blocks, int64_t entry) {
  const auto row = static_cast<int32_t>(entry / blocks.width), i = static_cast<int32_t>(entry % blocks.width);
  const int64_t index = blocks.at(entry);
  check_entry(team, blocks, &build.state->first_problem, row, i);
  if (index < 0 || index >= blocks.lines[1].num_lines) return;
  const auto column = static_cast<int32_t>(index);
  const auto mark = [&](int side, int32_t line, int32_t bit) {
    const BlockLines& lines = blocks.lines[side];
    return team.set_bits(lines.words + int64_t{line} * lines.words_per_line + bit / 32, uint32_t{1} << bit % 32) >>
               bit % 32 &
           1;
  };
  if (mark(0, row, column) != 0) note(team, *build.state, row, Problem::kBlockRepeats);
  mark(1, column, row);
}

/// The third, for one line.
template <class Team>
TANGRAM_HOST_DEVICE void count_line(const Team& team, const Blocks& blocks, int side, int32_t line) {
  const BlockLines& lines = blocks.lines[side];
  int64_t runs = 0, shared = 0;
  for_each(team, lines.words_per_line, [&](int32_t at) {
    runs += count_bits(blocks.begins(side, line, at));
    if (line > 0) shared += (blocks.word(side, line, at) & blocks.word(side, line - 1, at)) != 0;
  });
  runs = team.sum(runs), shared = team.sum(shared);
  if (team.rank() != 0) return;
  lines.num_runs[line] = static_cast<int32_t>(runs);
  lines.is_apart[line] = line > 0 && runs > 0 && shared == 0;
}

/// The fourth, by one team: what is wrong, how many slices there are, and where tiles begin.
template <class Team>
TANGRAM_HOST_DEVICE void begin_blocks(const Team& team, const Build& build, const Blocks& blocks) {
  State& state = *build.state;
  const uint32_t first = state.first_problem;
  team.sync();
  if (first != kNoProblem) {
    const auto row = static_cast<int32_t>(first / kProblems);
    const int32_t entry = find_entry(team, blocks, &state.first_problem);
    if (team.rank() == 0) {
      refuse(state, static_cast<Problem>(first % kProblems), row, blocks.at(int64_t{row} * blocks.width + entry),
             blocks.num_key_blocks);
    }
    team.sync();
  }
  for (int side = 0; side < 2; ++side) {
    const BlockLines& lines = blocks.lines[side];
    const int32_t num_slices = sums_before(team, lines.num_runs, lines.num_lines);
    int32_t num_candidates = 0;
    for (int32_t begin = 0; begin < lines.num_lines; begin += team.size()) {
      const int32_t line = begin + team.rank();
      const bool is_apart = line < lines.num_lines && lines.is_apart[line] != 0;
      int32_t total;
      const int32_t place = num_candidates + team.sum_before(is_apart, total);
      num_candidates += total;
      if (is_apart) build.candidates[side][place] = line * blocks.block;
    }
    if (team.rank() == 0 && !state.refused) {
      (side == 0 ? state.num_slices : state.num_slices_of_keys) = num_slices;
      build.num_candidates[side] = num_candidates;
    }
  }
  team.sync();
  begin_tiles(team, build);
}

/// The fifth, for one line: its slices.
template <class Team>
TANGRAM_HOST_DEVICE void slice_line(const Team& team, const Build& build, const Blocks& blocks, int side,
                                    int32_t line) {
  if (build.state->refused) return;
  const Pass& pass = build.passes[side];
  const BlockLines& lines = blocks.lines[side];
  const int32_t rows = side == 0 ? build.passes[0].num_rows : build.passes[0].num_keys;
  const int32_t keys = side == 0 ? build.passes[0].num_keys : build.passes[0].num_rows;
  int32_t before = lines.num_runs[line];
  for (int32_t from = 0; from < lines.words_per_line; from += team.size()) {
    const int32_t at = from + team.rank();
    uint32_t begins = at < lines.words_per_line ? blocks.begins(side, line, at) : 0;
    int32_t total;
    int32_t place = before + team.sum_before(count_bits(begins), total);
    before += total;
    for (; begins != 0; begins &= begins - 1, ++place) {
      const int32_t bit = at * 32 + lowest_bit(begins);
      Slice slice;
      slice.row_begin = line * blocks.block;
      slice.row_end = blocks.begin_of(line + 1, rows);
      slice.key_begin = bit * blocks.block;
      slice.key_end = blocks.begin_of(blocks.end_of(side, line, bit), keys);
      pass.slices[place] =
          canonical(slice, blocks.causal && side == 1 ? 0 : kOpenMin, blocks.causal && side == 0 ? 0 : kOpenMax);
      pass.ends[place] = slice.row_end;
    }
  }
}

}  // namespace tangram::schedule::builder
