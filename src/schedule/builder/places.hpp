// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Memory that builders of a mask image in device memory read and write. Plain pointers, made on the host
// (build_layout.hpp) and the same for every mask of a buffer.
#pragma once

#include <cstdint>

#include "schedule/builder/slice.hpp"
#include "schedule/key_work_tiles.hpp"
#include "schedule/tile_schedule_heuristic.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule::builder {

/// Error of a mask. The first of several at the smallest index wins, and the smallest of these there.
enum class Problem : int32_t {
  kNone,
  kQueriesFirst,     ///< cu_seqlens_q does not begin with 0: got
  kKeysFirst,        ///< likewise
  kQueriesDecrease,  ///< cu_seqlens_q[index] = got after other
  kKeysDecrease,
  kQueriesLast,  ///< cu_seqlens_q does not end with `other` rows: got
  kKeysLast,
  kBlockOutside,        ///< of blocks of keys, of which there are `other`, row `index` has `got`
  kBlockRepeats,        ///< it has it twice
  kBlockBehindPadding,  ///< it has it behind a -1
  kQueryRange,          ///< q_ranges[index] = [got, other) is reversed or outside
  kKeyRange,
  kMaskType,    ///< types[index] = got
  kOverlap,     ///< slices `got` and `index` show the same cell
  kQueryTiles,  ///< more than the buffer has room for: of index, `got` where there is room for `other`
  kKeyTiles,
  kForwardRuns,
  kBackwardRuns,
  kTurns,
};

/// Report to the host about refused masks: their number, and the error of the last one.
struct Report {
  int32_t num_refused = 0;
  int32_t head_group = 0;  ///< of blocks
  Problem problem = Problem::kNone;
  int32_t index = 0;
  int64_t got = 0, other = 0;
};
static_assert(sizeof(Report) == 32);

/// Runs of one tile before they are written: pieces of slices by their keys, and which of them make a run.
struct Run {
  int32_t key_begin = 0, key_end = 0;
  int32_t row_begin = 0, row_end = 0;  ///< hull of the rows of its pieces
  int32_t first = 0, last = 0;         ///< pieces, counted in the tile
};

struct Tile {
  int32_t first_piece = 0, num_head_splits = 0;
  int32_t num_runs = 0;
  bool whole = true;  ///< every piece has all rows of the tile, so that each is a run
  // Backward pass: query tiles that the runs of a key tile visit, see Extent.
  int32_t count = 0, first = 0, end = 0;
};

/// Input and output of one pass. Rows are queries, or keys in the backward pass.
struct Pass {
  int32_t num_rows = 0, num_keys = 0;
  int32_t block_rows = 0, block_keys = 0;
  int32_t anew_every = 0;  ///< as TileShape has it
  int32_t max_tiles = 0, max_runs = 0, max_pieces = 0;
  Slice* slices = nullptr;            ///< [max_slices], by rows, then keys
  int32_t* ends = nullptr;            ///< [max_slices] the largest row_end up to each
  int32_t* begins = nullptr;          ///< [max_tiles + 1] of tiles, then num_rows
  Tile* tiles = nullptr;              ///< [max_tiles]
  int32_t* costs = nullptr;           ///< [max_tiles] steps over blocks of keys
  int32_t* first_run = nullptr;       ///< [max_tiles + 1]
  int32_t* first_interval = nullptr;  ///< [max_tiles + 1] rows of intervals
  Slice* unsorted = nullptr;          ///< [max_pieces]
  Slice* head_splits = nullptr;       ///< [max_pieces]
  int32_t* next = nullptr;            ///< [max_pieces] the next piece of the same run
  Run* open_runs = nullptr;           ///< [max_pieces] of tiles that are not `whole`
  TileRange* runs = nullptr;          ///< in the image
};

/// How the work tiles of a key tile are scheduled; see emit_work_tiles.hpp.
struct Share {
  int32_t group = 0;  ///< place of its group
  int32_t steps = 0;  ///< of a piece
  int32_t head_splits = 1;
};

/// State that changes from mask to mask; of any content at first, except `report`.
struct State {
  Report report;
  uint64_t num_head_splits[2];
  int32_t num_slices;  ///< of either pass may differ
  int32_t num_slices_of_keys;
  uint32_t first_problem;  ///< index * kProblems + Problem; kNoProblem
  bool refused;            ///< lists are those of a mask that shows nothing
  int32_t num_tiles[2];
  int32_t num_q_tiles;
  int32_t num_intervals;  ///< of the forward pass
  int32_t num_work_tiles;
  Sections sections;       ///< in which work tiles are scheduled, or, without pieces, by group,
  int32_t heads_together;  ///< of so many K/V heads at a time
};
inline constexpr uint32_t kProblems = 32, kNoProblem = ~uint32_t{0};

/// Everything. `passes[0]` is the forward one, `passes[1]` the backward one.
struct Build {
  State* state = nullptr;
  Pass passes[2];
  bool has_forward = false, has_backward = false;
  int32_t max_slices = 0;
  // Candidates for the begins of tiles, see tile_begins.hpp: [max_slices + 1] each, of queries and of keys.
  int32_t* candidates[2] = {};
  int32_t* tiles_before[2] = {};
  int32_t* num_candidates = nullptr;  ///< [2]
  Slice* given = nullptr;             ///< [max_slices] of ranges, before they are sorted; some are empty
  int32_t* is_apart[2] = {};          ///< of sorted ones, of each pass: whether the mask falls apart there
  // The backward pass.
  int32_t num_heads_q = 0, num_heads_kv = 0, multiprocessors = 0;
  int32_t max_q_tiles = 0;
  Sections cached;  ///< of l2_tile_schedule(), pieces of all heads counted
  bool deterministic = false;
  bool heads_innermost = false;  ///< scatters_heads_inside()
  ScatteredPieces scattered_pieces;
  int32_t* q_begins = nullptr;     ///< [max_q_tiles + 1]
  int32_t* inside = nullptr;       ///< [max_q_tiles + 2]
  int32_t* is_begin = nullptr;     ///< [max_q_tiles + 2]
  int32_t* longest = nullptr;      ///< [max_q_tiles + 2] of groups
  int32_t* group_place = nullptr;  ///< [max_q_tiles + 2]
  Share* shares = nullptr;         ///< [max_tiles of keys]
  // The image: see ImageLayout.
  BackwardMaskInfo* mask_info = nullptr;
  QueryTile* q_tiles = nullptr;
  uint64_t* covered_queries = nullptr;
  MaskTile* forward_work_tiles = nullptr;
  RangeQueryTiles* run_tiles = nullptr;
  WorkTile* work_tiles = nullptr;
  RowInterval* intervals = nullptr;  ///< the begin of the image
  int64_t work_tiles_offset = 0;
};

/// The query tiles [first, end) that a run of the backward pass visits.
struct AssignedRun {
  int32_t first = 0, end = 0;
};

/// Additional lists of deterministic calls, see turns.hpp. Runs of the work tiles of one head, in scheduled order, and
/// inside a work tile in the order of its walk.
struct Turns {
  int32_t max_segments = 0;            ///< 0: of other calls
  AssignedRun* scheduled = nullptr;    ///< [max_runs]
  int32_t* first_scheduled = nullptr;  ///< [max_tiles] the first run of a key tile
  int32_t* first_segment = nullptr;    ///< [max_runs + 1] how many of each run, then where they begin
  int32_t* num_listed = nullptr;       ///< [max_runs]
  DqOrderSegment* listed = nullptr;    ///< [max_segments] those of a run beside each other, in any order
  DqOrderSegment* segments = nullptr;  ///< the begin of the image
};

/// Kernels of all calls take the part that they have in common.
struct TurnBuild : Build {
  Turns turns;
};

/// Buckets in which ranges are sorted: slices that begin near each other in a bucket, by rows and [1] by keys.
inline constexpr int32_t kBuckets = 1024;
struct Sorting {
  int32_t shift[2] = {0, 0};     ///< rows of a bucket, as a power of two
  int32_t* first[2] = {};        ///< [kBuckets + 1] where the members of each begin
  int32_t* num_placed[2] = {};   ///< [kBuckets] while they are listed
  int32_t* ends_before[2] = {};  ///< [kBuckets] how far slices of earlier buckets reach
  int32_t* members[2] = {};      ///< [max_slices] of `given`, those of a bucket in any order
  int32_t* index = nullptr;      ///< [max_slices] of those in the order of rows, in the list that was given
};
// What is_apart says of a slice while this is found out.
inline constexpr int32_t kJoined = 0, kApart = 1, kMeets = 2;

/// Additional memory of builds from ranges.
struct SortBuild : TurnBuild {
  Sorting sorting;
};

/// Value of State::first_problem for an error: the first in order has the least.
TANGRAM_HOST_DEVICE inline uint32_t problem_at(int32_t index, Problem problem) {
  return static_cast<uint32_t>(index) * kProblems + static_cast<uint32_t>(problem);
}

/// Notes a problem; the first in order stays.
template <class Team>
TANGRAM_HOST_DEVICE void note(const Team& team, State& state, int32_t index, Problem problem) {
  team.lower(&state.first_problem, problem_at(index, problem));
}

/// Refuses the mask. Called by one thread.
TANGRAM_HOST_DEVICE inline void refuse(State& state, Problem problem, int32_t index, int64_t got, int64_t other) {
  state.report = {state.report.num_refused + 1, 0, problem, index, got, other};
  state.refused = true;
  state.num_slices = state.num_slices_of_keys = 0;
}

}  // namespace tangram::schedule::builder
