// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HeadMoves: the all-to-all between the ranks of a row group (Ulysses, arXiv 2309.14509), written as operations.
#pragma once

#include "plan/program/rows.hpp"

namespace tangram {

/// Some heads of every head rank: those of one chunk.
struct HeadRange {
  int first = 0;  ///< first head of the chunk within a rank's heads
  int count = 0;
};

/// Moves tensors of one kind of rows (queries or keys).
class HeadMoves {
 public:
  /// `num_heads` of the tensors; with fewer heads than head ranks neighbouring ranks share a head. The names are
  /// those of casts.
  HeadMoves(const GridRank& rank, const Dispatch& dispatch, int num_heads, const char* to_heads_label,
            const char* to_rows_label);

  int first_head_of(int member) const { return static_cast<int>(int64_t{member} * num_heads_ / ulysses_degree_); }
  int first_head() const { return first_head_of(member_); }
  bool shares_heads() const { return num_heads_ < ulysses_degree_; }

  /// Copies the parts of a chunk of heads of `shard` that other ranks need, in `all`'s dtype, to where they are sent
  /// from. Copies the own rows into `all`, `[group rows, chunk.count, dim]`. All copies are appended to `copies`.
  GroupCastTensor pack(ProgramWriter& writer, const TensorRef& shard, HeadRange chunk, const TensorRef& all,
                       std::vector<RowSumOp>& copies) const;
  /// The heads of a chunk back to the ranks of their rows. `landed` gets those of the other ranks.
  GroupCastTensor back(ProgramWriter& writer, const TensorRef& all, TensorRef& landed) const;
  /// Writes the chunk's heads of `shard` from `landed`, which must have arrived. It appends copies to `copies`; if
  /// heads are shared, it writes sums in rank order at once.
  void unpack(ProgramWriter& writer, const TensorRef& all, const TensorRef& landed, HeadRange chunk,
              const TensorRef& shard, std::vector<RowSumOp>& copies) const;

  /// Exchanges one float32 value a row and head: each rank gets a part, padded to whole units. `landed` receives the
  /// parts; `unpack_floats` makes rows of the group from them.
  GroupCastTensor pack_floats(ProgramWriter& writer, const FloatRef& shard, HeadRange chunk, TensorRef& landed) const;
  void unpack_floats(ProgramWriter& writer, const FloatRef& shard, HeadRange chunk, const TensorRef& landed,
                     const FloatRef& all) const;
  GroupCastTensor floats_back(ProgramWriter& writer, const FloatRef& all, int count, TensorRef& landed) const;
  void unpack_floats_back(ProgramWriter& writer, const FloatRef& all, const TensorRef& landed, HeadRange chunk,
                          const FloatRef& shard) const;

 private:
  /// Rows of the group's buffer and of the shard.
  struct Run {
    Range group;
    int64_t shard_row = 0;
  };
  static int slot_of(int member, int self) { return member < self ? member : member - 1; }
  std::shared_ptr<const Exchange> whole_parts() const;
  /// Memory for a part for each other rank.
  TensorRef arena_parts(ProgramWriter& writer, int count) const;
  FloatRef part(const TensorRef& parts, int member, int count) const;
  /// Appends the copies of a member's rows between its shard and the group.
  void append_runs(std::vector<FloatCopyOp>& copies, int member, const FloatRef& shard, const FloatRef& group,
                   int count, bool to_group) const;

  const char* to_heads_label_;
  const char* to_rows_label_;
  int num_heads_ = 1;
  int ulysses_degree_ = 1;
  int member_ = 0;
  int first_rank_ = 0;
  int64_t shard_rows_ = 0;
  std::vector<std::vector<Run>> runs_;        // by member
  std::shared_ptr<const Exchange> to_heads_;  // packed rows of each other rank to rows of the group
  std::shared_ptr<const Exchange> to_rows_;   // rows of the group to packed rows
};

}  // namespace tangram
