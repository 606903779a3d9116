// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where the rows of a sequence are, as runs, and what undispatch, roll and labels move. A dispatch has tens to hundreds
// of runs, whatever the length of the sequence, and everything here costs what they cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/plan.hpp"
#include "tangram/range.hpp"

namespace tangram {

/// Consecutive global rows of one shard.
struct OwnedRun {
  Range global;
  int owner = 0;
  int64_t row = 0;  // first row in the owner's shard
};

/// One rank's part in an exchange in which every rank wants rows of the sequence, in an order of its own.
struct ShardMoves {
  std::vector<Range> sends;        // rows of this rank's shard: those for rank 0, then those for rank 1, ...
  std::vector<int64_t> send_rows;  // [cp_size]
  std::vector<int64_t> recv_rows;  // [cp_size]
  std::vector<Range> places;       // in the order wanted: rows among the rows from rank 0, 1, ...
  int64_t most_rows = 0;           // that any rank sends to another one
  int64_t most_table_rows = 0;     // rows of sends and of places on the rank where they are most
};

/// The labels of the rows of a shard that are no padding.
struct ShardLabels {
  std::vector<Range> sources;  // in shard order: rows of the sequence that hold them, or any rows where there are none
  std::vector<Range> without;  // rows of the shard that have none
};

class ShardMap {
 public:
  explicit ShardMap(const Dispatch& dispatch);

  int cp_size() const { return static_cast<int>(rows_of_rank_.size()); }
  int64_t seqlen() const { return seqlen_; }
  int64_t rows_per_rank() const { return seqlen_ / cp_size(); }

  /// A hash of where each row is, equal on every rank and machine.
  uint64_t fingerprint() const;

  /// The rows of a rank's shard that lie below `total`, in shard order. Throws InvalidArgument, as the others, unless
  /// rank and total lie in the dispatch.
  std::vector<Range> rows_of_rank(int rank, int64_t total) const;

  /// Every rank wants the first `total` rows of the sequence; the others are padding.
  ShardMoves gather(int rank, int64_t total) const;

  /// Every rank wants for its row i the row `(i - shift) mod total`, and for rows from `total` on these themselves.
  ShardMoves roll(int rank, int64_t total, int64_t shift) const;

  /// The label of row i is row `i + shift`, if that belongs to the same document. Throws InvalidArgument unless
  /// `cu_seqlens`, the borders of documents, rises from 0 to total, and where shift is negative.
  ShardLabels labels(int rank, int64_t total, int64_t shift, std::span<const int64_t> cu_seqlens) const;

 private:
  class Wishes;
  void check(const char* function, int rank, int64_t total) const;

  int64_t seqlen_ = 0;
  std::vector<OwnedRun> runs_;                    // by global row; they cover the sequence
  std::vector<std::vector<Range>> rows_of_rank_;  // [cp_size]
};

}  // namespace tangram
