// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention of the rows of a row group, for some heads, with all of K/V: what is left of a step once heads have been
// exchanged. One implementation for each way in which K/V blocks travel between row groups.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "dist/rank_context.hpp"

namespace tangram {

/// As AttnForwardArgs, with the q rows and the K/V block of the row group. `stage` is for the record.
struct RowForwardArgs {
  AttnForwardArgs attn;
  int stage = 0;
};
/// As AttnBackwardArgs; dq, dk, dv are overwritten.
struct RowBackwardArgs {
  AttnBackwardArgs attn;
  int stage = 0;
};

/// Collective over the ranks that hold the same heads. Calls the backend for the heads of its arguments.
class RowAttention {
 public:
  virtual ~RowAttention() = default;
  virtual void forward(const RowForwardArgs& args) = 0;
  virtual void backward(const RowBackwardArgs& args) = 0;

 protected:
  explicit RowAttention(RankContext& context);

  /// Prepares the steps for `heads_kv` K/V heads of a chunk; the first call of a number of heads.
  void prepare(int heads_kv);
  /// The prepared steps for the heads of a call, null where there is nothing to compute; the first one always is there.
  std::vector<std::unique_ptr<PreparedMask>>& steps_for(int heads_kv) { return prepared_.at(heads_kv); }

  const std::vector<GridStep>& steps() const { return context_.plan->grid.steps[static_cast<size_t>(group_)]; }
  /// The rank of another row group that holds the same heads.
  int rank_of(int group) const { return group * context_.plan->grid.head_ranks + member_; }
  int64_t block_rows() const;
  HostTensor allocate(DType dtype, int64_t rows, const ConstTensorView& like);

  RankContext& context_;
  int group_ = 0;
  int member_ = 0;

 private:
  std::map<int, std::vector<std::unique_ptr<PreparedMask>>> prepared_;
};

/// Made for the plan's grid.
std::unique_ptr<RowAttention> make_row_attention(RankContext& context);
std::unique_ptr<RowAttention> make_ring_rows(RankContext& context);
std::unique_ptr<RowAttention> make_gather_rows(RankContext& context);
std::unique_ptr<RowAttention> make_sub_ring_rows(RankContext& context);

/// Poisoned with NaN under TANGRAM_SANITY_CHECK, so that a row that is used before it came shows.
HostTensor allocate_landing(PassRecorder& recorder, DType dtype, int64_t rows, int heads, int dim);

}  // namespace tangram
