// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tables of a pass in which every block of (head group, query chunk, key chunk) is computed by some rank, drawn at
// random: its queries' owner, its keys' owner, or a third. What no planner would choose the executor must do all the
// same.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tangram/plan.hpp"

namespace tangram::testing {

/// Rows that a rank needs of one chunk, merged, in rows of the sequence.
inline std::vector<Range> merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (!result.empty() && range.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, range.end);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

class RandomMovement {
 public:
  RandomMovement(const Mask& mask, const Dispatch& q, const Dispatch& k, int head_groups, int num_stages, unsigned seed)
      : mask_(mask), q_(q), k_(k), groups_(head_groups), stages_(num_stages), rng_(seed) {}

  std::vector<MovementRank> draw() {
    std::vector<std::vector<Block>> blocks(static_cast<size_t>(q_.cp_size));
    for (int group = 0; group < groups_; ++group) {
      for (int64_t qc = 0; qc < q_.num_chunks(); ++qc) {
        for (int64_t kc = 0; kc < k_.num_chunks(); ++kc) add_block(group, qc, kc, blocks);
      }
    }
    ranks_.resize(blocks.size());
    for (MovementRank& rank : ranks_) rank.stages.resize(static_cast<size_t>(stages_));
    for (size_t rank = 0; rank < blocks.size(); ++rank) fill(static_cast<int>(rank), blocks[rank]);
    for (MovementRank& rank : ranks_) {
      for (MovementStage& stage : rank.stages) {
        for (auto* copies : {&stage.q.sends, &stage.q.recvs, &stage.kv.sends, &stage.kv.recvs}) {
          std::sort(copies->begin(), copies->end());
        }
      }
    }
    return std::move(ranks_);
  }

 private:
  using Chunk = std::pair<int, int64_t>;  // head group, chunk

  struct Block {
    Chunk q, k;
    std::vector<AttnSlice> slices;  // rows of the sequence
  };
  /// Where rows of a chunk lie in a buffer.
  struct Piece {
    Range rows;  // of the sequence
    int64_t buffer_row;
  };
  using Pieces = std::map<Chunk, std::vector<Piece>>;

  int draw(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng_); }

  static int owner(const Dispatch& dispatch, Chunk chunk) {
    return dispatch.rank_of_chunk[static_cast<size_t>(chunk.second)];
  }
  /// Row of the owner's shard, by groups, at which a row of a chunk lies.
  static int64_t shard_row(const Dispatch& dispatch, Chunk chunk, int64_t row) {
    int64_t before = 0;
    for (int64_t c = 0; c < chunk.second; ++c) before += owner(dispatch, {0, c}) == owner(dispatch, chunk) ? 1 : 0;
    return chunk.first * dispatch.rows_per_rank() + before * dispatch.chunk_size + row -
           chunk.second * dispatch.chunk_size;
  }

  static Range flattened(const Dispatch& dispatch, Chunk chunk, Range rows) {
    return rows.shifted(chunk.first * dispatch.seqlen());
  }

  void add_block(int group, int64_t qc, int64_t kc, std::vector<std::vector<Block>>& blocks) {
    Block block{{group, qc}, {group, kc}, {}};
    for (const AttnSlice& slice : mask_.slices()) {
      const AttnSlice part = cut_columns(cut_rows(slice, {qc * q_.chunk_size, (qc + 1) * q_.chunk_size}),
                                         {kc * k_.chunk_size, (kc + 1) * k_.chunk_size});
      if (area(part) > 0) block.slices.push_back(part);
    }
    if (block.slices.empty()) return;
    const int choice = draw(0, 4);
    const int rank = choice < 2 ? owner(q_, block.q) : choice < 4 ? owner(k_, block.k) : draw(0, q_.cp_size - 1);
    blocks[static_cast<size_t>(rank)].push_back(std::move(block));
  }

  void fill(int rank_idx, const std::vector<Block>& blocks) {
    MovementRank& rank = ranks_[static_cast<size_t>(rank_idx)];
    std::map<Chunk, std::vector<Range>> q_rows, k_rows;
    std::map<Chunk, int> q_stage, k_stage;
    for (const Block& block : blocks) {
      for (const AttnSlice& slice : block.slices) {
        q_rows[block.q].push_back(slice.q_range);
        k_rows[block.k].push_back(slice.k_range);
      }
      if (!k_stage.contains(block.k)) k_stage[block.k] = owner(k_, block.k) == rank_idx ? 0 : draw(1, stages_ - 1);
      if (owner(q_, block.q) == rank_idx) continue;
      if (!q_stage.contains(block.q)) q_stage[block.q] = draw(1, stages_ - 1);
      q_stage[block.q] = std::max(q_stage[block.q], k_stage[block.k]);
    }
    const Pieces k_pieces = place_keys(rank_idx, k_rows, k_stage);
    const Pieces q_pieces = place_queries(rank_idx, q_rows, q_stage);
    for (const Block& block : blocks) {
      const bool fetched = q_stage.contains(block.q);
      MovementStage& stage = rank.stages[static_cast<size_t>(fetched ? q_stage[block.q] : k_stage[block.k])];
      for (const AttnSlice& slice : block.slices) {
        const int64_t q_row =
            fetched ? place(q_pieces.at(block.q), slice.q_range) : shard_row(q_, block.q, slice.q_range.begin);
        const int64_t k_row = place(k_pieces.at(block.k), slice.k_range);
        (fetched ? stage.moved_slices : stage.own_slices)
            .push_back(shifted(slice, q_row - slice.q_range.begin, k_row - slice.k_range.begin));
      }
    }
  }

  static int64_t place(const std::vector<Piece>& pieces, Range rows) {
    for (const Piece& piece : pieces) {
      if (piece.rows.contains(rows)) return piece.buffer_row + rows.begin - piece.rows.begin;
    }
    return -1;
  }

  Pieces place_keys(int rank_idx, std::map<Chunk, std::vector<Range>>& k_rows, std::map<Chunk, int>& k_stage) {
    MovementRank& rank = ranks_[static_cast<size_t>(rank_idx)];
    Pieces pieces;
    for (auto& [chunk, ranges] : k_rows) {
      for (const Range& rows : merged(ranges)) {
        const int from = owner(k_, chunk);
        const int64_t from_row = shard_row(k_, chunk, rows.begin);
        const int stage = k_stage[chunk];
        pieces[chunk].push_back({rows, rank.kv_rows});
        rank.kv_segments.push_back({flattened(k_, chunk, rows), rank.kv_rows, from, from_row, stage});
        if (from != rank_idx) {
          connect(&MovementStage::kv, rank_idx, from, stage, {rank.kv_rows, rank.kv_rows + rows.size()}, from_row);
          rank.remote_kv_rows += rows.size();
        }
        rank.kv_rows += rows.size();
      }
    }
    return pieces;
  }

  Pieces place_queries(int rank_idx, std::map<Chunk, std::vector<Range>>& q_rows, std::map<Chunk, int>& q_stage) {
    MovementRank& rank = ranks_[static_cast<size_t>(rank_idx)];
    Pieces pieces;
    for (int stage = 0; stage < stages_; ++stage) {
      for (auto& [chunk, ranges] : q_rows) {
        if (!q_stage.contains(chunk) || q_stage[chunk] != stage) continue;
        for (const Range& rows : merged(ranges)) {
          const int64_t at = rank.remote_q_rows;
          pieces[chunk].push_back({rows, at});
          rank.q_segments.push_back(
              {flattened(q_, chunk, rows), at, owner(q_, chunk), shard_row(q_, chunk, rows.begin), stage});
          connect(&MovementStage::q, rank_idx, owner(q_, chunk), stage, {at, at + rows.size()},
                  shard_row(q_, chunk, rows.begin));
          rank.remote_q_rows += rows.size();
        }
      }
    }
    return pieces;
  }

  void connect(Exchange MovementStage::* table, int to, int from, int stage, Range rows, int64_t from_row) {
    const auto exchange = [&](int rank) -> Exchange& {
      return ranks_[static_cast<size_t>(rank)].stages[static_cast<size_t>(stage)].*table;
    };
    exchange(to).recvs.push_back({from, rows, from_row});
    exchange(from).sends.push_back({to, {from_row, from_row + rows.size()}, rows.begin});
  }

  const Mask& mask_;
  const Dispatch& q_;
  const Dispatch& k_;
  const int groups_;
  const int stages_;
  std::mt19937 rng_;
  std::vector<MovementRank> ranks_;
};

}  // namespace tangram::testing
