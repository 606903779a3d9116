// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Slices of packed documents, a slice each, and tiles that begin with them. By one team.
#pragma once

#include <cstdint>

#include "schedule/builder/places.hpp"
#include "schedule/builder/tile_begins.hpp"

namespace tangram::schedule::builder {

/// Queries [cu_q[i], cu_q[i + 1]) see keys [cu_k[i], cu_k[i + 1]) in a band around the diagonal that ends in the last
/// query and the last key.
struct Documents {
  const void* cu_q = nullptr;  ///< [count + 1]
  const void* cu_k = nullptr;
  bool is_wide = false;  ///< of 64 bits, else 32
  int32_t count = 0;
  int64_t left = -1, right = -1;  ///< keys beside the diagonal; -1: all

  TANGRAM_HOST_DEVICE int64_t at(const void* cu_seqlens, int32_t i) const {
    return is_wide ? static_cast<const int64_t*>(cu_seqlens)[i] : static_cast<const int32_t*>(cu_seqlens)[i];
  }
};

/// Before all else: nothing is there, and nothing is wrong.
template <class Team>
TANGRAM_HOST_DEVICE void begin_build(const Team& team, const Build& build) {
  State& state = *build.state;
  if (team.rank() == 0) {
    state.num_head_splits[0] = state.num_head_splits[1] = 0;
    state.num_slices = state.num_slices_of_keys = 0;
    state.first_problem = kNoProblem;
    state.refused = false;
    state.num_tiles[0] = state.num_tiles[1] = state.num_q_tiles = 0;
    state.num_intervals = state.num_work_tiles = 0;
    build.num_candidates[0] = build.num_candidates[1] = 0;
  }
  team.sync();
}

/// Refuses what is not a list of documents.
template <class Team>
TANGRAM_HOST_DEVICE void check_documents(const Team& team, const Build& build, const Documents& documents) {
  State& state = *build.state;
  const int64_t rows = build.passes[0].num_rows, keys = build.passes[0].num_keys;
  for_each(team, documents.count + 1, [&](int32_t i) {
    const int64_t q = documents.at(documents.cu_q, i), k = documents.at(documents.cu_k, i);
    if (i == 0 && q != 0) note(team, state, i, Problem::kQueriesFirst);
    if (i == 0 && k != 0) note(team, state, i, Problem::kKeysFirst);
    if (i > 0 && q < documents.at(documents.cu_q, i - 1)) note(team, state, i, Problem::kQueriesDecrease);
    if (i > 0 && k < documents.at(documents.cu_k, i - 1)) note(team, state, i, Problem::kKeysDecrease);
    if (i == documents.count && q != rows) note(team, state, i, Problem::kQueriesLast);
    if (i == documents.count && k != keys) note(team, state, i, Problem::kKeysLast);
  });
  team.sync();
  if (team.rank() == 0 && state.first_problem != kNoProblem) {
    const auto index = static_cast<int32_t>(state.first_problem / kProblems);
    const auto problem = static_cast<Problem>(state.first_problem % kProblems);
    const bool of_keys =
        problem == Problem::kKeysFirst || problem == Problem::kKeysDecrease || problem == Problem::kKeysLast;
    const void* const cu_seqlens = of_keys ? documents.cu_k : documents.cu_q;
    const bool is_last = problem == Problem::kQueriesLast || problem == Problem::kKeysLast;
    const int64_t other = is_last ? (of_keys ? keys : rows) : index > 0 ? documents.at(cu_seqlens, index - 1) : 0;
    refuse(state, problem, index, documents.at(cu_seqlens, index), other);
  }
  team.sync();
}

/// Documents that show nothing have no slice.
template <class Team>
TANGRAM_HOST_DEVICE void slice_documents(const Team& team, const Build& build, const Documents& documents) {
  State& state = *build.state;
  const Pass &by_rows = build.passes[0], &by_keys = build.passes[1];
  int32_t num_slices = 0, num_candidates[2] = {0, 0};
  for (int32_t begin = 0; begin < documents.count; begin += team.size()) {
    const int32_t i = begin + team.rank();
    Slice slice;
    if (i < documents.count) {
      const auto row_end = static_cast<int32_t>(documents.at(documents.cu_q, i + 1));
      const auto key_end = static_cast<int32_t>(documents.at(documents.cu_k, i + 1));
      slice = {static_cast<int32_t>(documents.at(documents.cu_q, i)), row_end,
               static_cast<int32_t>(documents.at(documents.cu_k, i)), key_end};
      const int64_t diagonal = int64_t{key_end} - row_end;
      slice = canonical(slice, documents.left < 0 ? kOpenMin : diagonal - documents.left,
                        documents.right < 0 ? kOpenMax : diagonal + documents.right);
    }
    // Documents fall apart from each other, in rows and in keys.
    const bool begins[2] = {!slice.empty() && slice.row_begin > 0, !slice.empty() && slice.key_begin > 0};
    int32_t total;
    const int32_t at = num_slices + team.sum_before(!slice.empty(), total);
    num_slices += total;
    if (!slice.empty()) {
      by_rows.slices[at] = slice;
      by_rows.ends[at] = slice.row_end;
      by_keys.slices[at] = transposed(slice);
      by_keys.ends[at] = slice.key_end;
    }
    for (int side = 0; side < 2; ++side) {
      const int32_t place = num_candidates[side] + team.sum_before(begins[side], total);
      num_candidates[side] += total;
      if (begins[side]) build.candidates[side][place] = side == 0 ? slice.row_begin : slice.key_begin;
    }
  }
  if (team.rank() == 0) {
    state.num_slices = state.num_slices_of_keys = num_slices;
    build.num_candidates[0] = num_candidates[0], build.num_candidates[1] = num_candidates[1];
  }
  team.sync();
}

/// Tiles of both passes, and those of the queries of the backward one, of which there may be too many.
template <class Team>
TANGRAM_HOST_DEVICE void begin_tiles(const Team& team, const Build& build) {
  State& state = *build.state;
  const Pass &forward = build.passes[0], &backward = build.passes[1];
  if (build.has_forward) {
    const RegularTiles tiles{forward.num_rows, forward.block_rows, forward.anew_every};
    place_regular_tiles(team, tiles, forward.begins);
    if (team.rank() == 0) state.num_tiles[0] = tiles.count();
  }
  if (!build.has_backward) return;
  const auto place = [&](int side, int32_t* begins, int32_t room) {
    const Pass& pass = backward;
    return place_tiles(team, build.candidates[side], state.refused ? 0 : build.num_candidates[side],
                       side == 0 ? pass.num_keys : pass.num_rows, side == 0 ? pass.block_keys : pass.block_rows, begins,
                       room, build.tiles_before[side]);
  };
  int32_t num_q_tiles = place(0, build.q_begins, build.max_q_tiles);
  int32_t num_tiles = place(1, backward.begins, backward.max_tiles);
  if (num_q_tiles > build.max_q_tiles || num_tiles > backward.max_tiles) {
    if (team.rank() == 0) {
      const bool queries = num_q_tiles > build.max_q_tiles;
      refuse(state, queries ? Problem::kQueryTiles : Problem::kKeyTiles, 0, queries ? num_q_tiles : num_tiles,
             queries ? build.max_q_tiles : backward.max_tiles);
    }
    team.sync();
    num_q_tiles = place(0, build.q_begins, build.max_q_tiles);
    num_tiles = place(1, backward.begins, backward.max_tiles);
  }
  if (team.rank() == 0) state.num_q_tiles = num_q_tiles, state.num_tiles[1] = num_tiles;
}

/// The first step: documents to slices, slices to tiles.
template <class Team>
TANGRAM_HOST_DEVICE void begin_documents(const Team& team, const Build& build, const Documents& documents) {
  begin_build(team, build);
  check_documents(team, build, documents);
  if (!build.state->refused) slice_documents(team, build, documents);
  begin_tiles(team, build);
}

}  // namespace tangram::schedule::builder
