// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The all-to-all between the ranks of a row group: from own rows of all heads to all rows of some heads, and back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/rank_context.hpp"

namespace tangram {

/// Some heads of every head rank: those of one chunk. Numbers count heads of the tensor that is exchanged.
struct HeadChunk {
  int first = 0;  ///< first head of the chunk within a rank's heads
  int count = 0;
};

/// Exchanges tensors of one kind of rows (queries or keys).
class HeadExchange {
 public:
  /// `num_heads` of the tensors; with fewer heads than head ranks neighbouring ranks share a head.
  HeadExchange(RankContext& context, const Dispatch& dispatch, int num_heads);

  int64_t group_rows() const { return shard_rows_ * head_ranks_; }

  /// An exchange under way. Owns what it sends and where it lands.
  struct Exchanged {
    std::vector<HostTensor> tensors;  ///< complete once waited for
    std::vector<HostTensor> packed;   ///< rows by head rank
    std::unique_ptr<CommHandle> handle;
  };

  /// Brings a chunk of heads of all rows of the group, `[group rows, chunk.count, dim]` for each shard.
  Exchanged to_heads(const std::vector<ConstTensorView>& shards, HeadChunk chunk, int stage, const char* label);
  /// Sends the heads of a chunk back to the ranks of their rows. `heads` must outlive the exchange.
  Exchanged to_rows(const std::vector<ConstTensorView>& heads, int stage, const char* label);
  /// Once `back` has been waited for: writes tensor `idx` into the heads of the shard that the chunk stands for.
  /// Copies of shared heads are summed in rank order, in float32.
  void unpack(const Exchanged& back, size_t idx, HeadChunk chunk, const TensorView& shard);

  /// The first head of head rank `member`, with fewer heads than head ranks the one that it shares.
  int first_head_of(int member) const;
  int first_head() const { return first_head_of(member_); }
  bool shares_heads() const { return num_heads_ < head_ranks_; }

 private:
  template <class Visit>
  void for_each_run(int member, Visit visit) const;
  TensorView packed_rows(const TensorView& packed, int member) const;

  RankContext& context_;
  int num_heads_ = 1;
  int head_ranks_ = 1;
  int member_ = 0;
  int64_t shard_rows_ = 0;
  std::vector<std::vector<Range>> runs_;  // by member: rows of the group's buffer
  Exchange to_heads_;                     // packed rows to rows of the group
  Exchange to_rows_;                      // the way back
};

}  // namespace tangram
