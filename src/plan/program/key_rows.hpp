// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The K/V rows that a rank computes with where rows move to where they are seen, and what becomes of their gradients.
#pragma once

#include <optional>
#include <vector>

#include "plan/program/recv_buffer_rows.hpp"
#include "plan/program/rows.hpp"

namespace tangram {

/// The tensors of a pass as the caller gives them, all heads.
struct PassArguments {
  TensorRef q, out, dout, dq;
  TensorRef lse;  // dim 1
  PairRef keys, key_grads;

  PassArguments(const Plan& plan, const CallShape& call);
};

/// Local and remote rows, compact and in global row order (NOTE [global row order]).
struct KeyLayout {
  struct OwnRows {
    Range buffer, shard;
  };

  int64_t rows = 0;
  int64_t remote_rows = 0;
  std::vector<OwnRows> own;  // in buffer order

  /// The shard itself could be the buffer: there are no remote rows, and the own ones are one range of it.
  bool shard_could_serve() const { return remote_rows == 0 && own.size() <= 1; }

  template <class Segments>
  KeyLayout(const Segments& segments, int rank, int64_t kv_rows, int64_t remote_kv_rows)
      : rows(kv_rows), remote_rows(remote_kv_rows) {
    for (const auto& segment : segments) {
      const int64_t size = segment.global.size();
      if (segment.owner != rank) continue;
      own.push_back({{segment.row, segment.row + size}, {segment.owner_row, segment.owner_row + size}});
    }
  }
};

class KeyBuffer {
 public:
  /// `of_its_own`: also where the shard itself could serve, which is one range of it and no remote rows.
  /// `arena_rows`: of regions that must be alike on all ranks; else those that are needed.
  KeyBuffer(ProgramWriter& writer, const KeyLayout& layout, DType dtype, const PairRef& like, bool of_its_own,
            std::optional<int64_t> arena_rows = std::nullopt);

  /// Copies the own rows.
  void fill(ProgramWriter& writer, const PairRef& shard);
  /// Rows that attention reads, once filled.
  const PairRef& rows() const { return rows_; }
  /// Where remote rows land; empty where the shard serves.
  const PairRef& recv_buffers() const { return recv_buffers_; }

 private:
  const KeyLayout& layout_;
  bool shard_serves_;
  PairRef rows_, recv_buffers_;
};

/// Gradients of the rows of a buffer, in float32; those of remote rows move to their owners in `move`.
class KeyGradients {
 public:
  /// `moves`: some rank has remote rows, and this one gets gradients for `owned_rows` of its shard, to which casts add.
  KeyGradients(ProgramWriter& writer, const KeyLayout& layout, const PairRef& like, DType move, bool moves,
               int64_t owned_rows);
  /// Gradients for casts that do not add: received rows have places of their own. `arena_rows`: the most rows of a
  /// buffer.
  KeyGradients(ProgramWriter& writer, const KeyLayout& layout, const PairRef& like, DType move, bool moves,
               RecvBufferRows recv_buffers, int64_t arena_rows);

  const PairRef& computed() const { return computed_; }
  /// Lets the call add to dk and dv.
  void add_to(AttendOp& call) const {
    call.dk = computed_.k;
    call.dv = computed_.v;
    call.accumulate_kv = true;
  }
  /// Sends those of the rows that a stage brought.
  void send_back(ProgramWriter& writer, const Exchange& exchange, size_t stage);
  /// Writes the shard's, once those of others have come: theirs plus what this rank's queries contributed. The shard's
  /// rows are those of the first of `head_groups` groups of heads, then those of the next.
  void finish(ProgramWriter& writer, const PairRef& shard_grads, int head_groups);

 private:
  const KeyLayout& layout_;
  PairRef computed_;
  PairRef sent_;                        // the same in `move`
  PairRef owned_;                       // what others have added to gradients of the shard, or where their parts land
  std::vector<Exchange> recv_buffers_;  // by stage, where casts do not add
  RowListsRef owned_rows_;
  bool has_owned_ = false;
};

/// The heads of one group; `groups` divides those of `tensor`, an argument.
TensorRef heads_of_group(const TensorRef& tensor, int group, int groups);

}  // namespace tangram
