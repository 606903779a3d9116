// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MovementWriter: common parts of the programs of both passes with QO communication: operands by head groups, their
// sources, and the places of results.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "plan/program/key_rows.hpp"
#include "plan/program/movement_calls.hpp"
#include "plan/program/recv_buffer_rows.hpp"

namespace tangram {

/// Results of rows: out, and lse with dim 1.
struct PartialRef {
  TensorRef out, lse;
};

/// Tensor that ranks fetch: as the rank's own calls read it, and the source of casts.
struct Operand {
  TensorRef own, sent;
};

/// FloatRef of a tensor of dim 1 with all of its heads.
inline FloatRef floats_of_rows(const TensorRef& ref) {
  return {ref.memory, ref.first_row * ref.heads, ref.heads, ref.region};
}

/// Appends the copies that make rows of `to`, which may have fewer or more columns: those are filled.
void append_float_copies(std::vector<FloatCopyOp>& copies, const TensorRef& from, const TensorRef& to);

class MovementWriter {
 public:
  MovementWriter(const Plan& plan, int rank, bool backward, const CallShape& call, const ProgramTarget& target)
      : plan_(plan),
        pass_(plan.movement()->of(backward ? AttnPass::kBackward : AttnPass::kForward)),
        self_(static_cast<size_t>(rank)),
        rank_(pass_[self_]),
        groups_(plan.movement()->head_groups),
        call_(call),
        given_(plan, call),
        key_heads_{of_group(given_.keys.k, 0), of_group(given_.keys.v, 0)},
        layout_(rank_.kv_segments, rank, rank_.kv_rows, rank_.remote_kv_rows),
        calls_(movement_calls(plan, rank_)),
        steps_(movement_steps(pass_)),
        writer_(target) {
    for (const MovementStage& stage : rank_.stages) {
      lends_q_ = lends_q_ || !stage.q.sends.empty();
      lends_kv_ = lends_kv_ || !stage.kv.sends.empty();
    }
    for (const MovementStep& step : steps_) {
      moves_q_ = moves_q_ || step.moves_q;
      moves_kv_ = moves_kv_ || step.moves_kv;
    }
  }

  Program forward();
  Program backward(bool kept);

 private:
  TensorRef of_group(const TensorRef& given, int group) const { return heads_of_group(given, group, groups_); }
  Range rows_of_group(int group) const { return {group * given_.q.rows, (group + 1) * given_.q.rows}; }
  bool on_stream() const { return !writer_.target().sends_from_anywhere; }
  /// Rows of a region of the arena for `rows`, alike on all ranks where layouts must be.
  template <class Rows>
  int64_t arena_rows(const Rows& rows_of) const {
    if (!on_stream()) return rows_of(rank_);
    int64_t most = 0;
    for (const MovementRank& rank : pass_) most = std::max(most, rows_of(rank));
    return most;
  }
  int64_t fetched_rows() const {
    return arena_rows([](const MovementRank& rank) { return rank.remote_q_rows; });
  }
  /// Memory for rows with the heads of one group.
  TensorRef work(DType dtype, int64_t rows, const TensorRef& like) {
    return writer_.work(dtype, rows, like.heads / groups_, like.dim);
  }
  TensorRef arena(DType dtype, int64_t rows, const TensorRef& like) {
    return writer_.arena(dtype, rows, like.heads / groups_, like.dim);
  }
  /// Memory from which casts take results of `rows`.
  TensorRef sendable(DType dtype, int64_t rows, const TensorRef& like) {
    return on_stream() ? arena(dtype, rows, like) : work(dtype, rows, like);
  }
  /// Columns of one float a head in casts.
  int sent_columns() const {
    const int64_t unit = writer_.target().float_unit, heads = given_.q.heads / groups_;
    return static_cast<int>((heads + unit - 1) / unit * unit);
  }
  bool sends_columns_as_they_are() const { return sent_columns() == given_.q.heads / groups_; }
  TensorRef arena_floats(int64_t rows) { return writer_.arena(DType::kFloat32, rows, sent_columns(), 1); }
  /// Floats that calls read of those fetched into `landed`: these, or memory for their columns alone.
  TensorRef calls_floats(const TensorRef& landed) {
    return sends_columns_as_they_are() ? landed : work(DType::kFloat32, rank_.remote_q_rows, given_.lse);
  }
  /// The rows that a stage fetches.
  Range fetched_in(size_t stage) const {
    Range rows;
    for (const RowCopy& copy : rank_.stages[stage].q.recvs) rows = hull(rows, copy.rows);
    return rows;
  }

  /// A tensor by groups: copied, or with one group itself. `fetched`: by some rank, `lent`: of this one.
  Operand operand(const TensorRef& given, bool fetched, bool lent, std::vector<RowSumOp>& copies);
  /// Tensor by head groups, in `result` if there are several.
  TensorRef grouped(const TensorRef& given, const TensorRef& result, std::vector<RowSumOp>& copies);
  /// Operand of floats, one for each row and head.
  Operand float_operand(const TensorRef& own);
  TensorRef grouped_lse();
  /// Between the lse of all heads and one by groups.
  void copy_lse(const TensorRef& by_groups, bool to_groups);
  /// Memory for floats of the shard by groups.
  TensorRef floats_by_groups() {
    const int64_t rows = groups_ * given_.q.rows;
    const bool is_sent = on_stream() && moves_q_ && sends_columns_as_they_are();
    return is_sent ? arena_floats(rows) : work(DType::kFloat32, rows, given_.lse);
  }
  void send_floats(const Operand& floats);
  /// Where the sum of all of a result is made, by groups.
  TensorRef sum_of(const TensorRef& given, DType dtype) {
    return groups_ == 1 ? sum_for(writer_, given, dtype) : work(DType::kFloat32, groups_ * given.rows, given);
  }
  /// Writes the sum, and what came from others, to the tensor of all heads. `lists`: of all rows of the shard.
  void write_groups(const TensorRef& sum, const TensorRef& others, const RowListsRef& lists, const TensorRef& given);

  /// Makes what is fetched, which is first so that it can be kept.
  void begin(bool keeps, bool sends_q);
  void make_keys();
  void fill_keys() { buffer_->fill(writer_, {keys_[0].own, keys_[1].own}); }
  /// The cast of each stage: queries and keys.
  void add_casts(const std::vector<std::pair<TensorRef, TensorRef>>& with_queries, const char* label, bool with_keys);
  /// The cast that takes results of a stage back.
  GroupCast return_cast(size_t stage, const std::vector<std::pair<TensorRef, TensorRef>>& tensors,
                        const char* label) const;
  /// Plays the stages: `arrive` once rows of a stage are there, `attend` with the number of each call, `send_back`
  /// after each stage.
  template <class Arrive, class Attend, class SendBack>
  void play_stages(const Arrive& arrive, const Attend& attend, const SendBack& send_back);
  AttendOp attend_to(const MovementCall& call, size_t mask) const;
  FloatRef sink_of(Memory where, int group) const {
    const int num_heads = given_.q.heads;
    return call_.seqlen_sink > 0 ? FloatRef{where, group * (num_heads / groups_), num_heads} : FloatRef{};
  }
  void make_maxima();
  /// Where parts for this rank's rows land, on streams.
  void find_recv_buffer_rows();
  RowListsRef add_lists() {
    return recv_buffers_.rows > 0 ? writer_.add_lists(std::move(recv_buffers_.of_shard_row)) : RowListsRef{};
  }

  const Plan& plan_;
  const std::vector<MovementRank>& pass_;
  const size_t self_;
  const MovementRank& rank_;
  const int groups_;
  const CallShape call_;
  const PassArguments given_;
  const PairRef key_heads_;  // of one group
  const KeyLayout layout_;
  const std::vector<MovementCall> calls_;
  const std::vector<MovementStep> steps_;
  ProgramWriter writer_;
  bool lends_q_ = false;  // other ranks compute for rows of this one
  bool lends_kv_ = false;
  bool moves_q_ = false;  // of some rank
  bool moves_kv_ = false;
  Operand q_;
  TensorRef fetched_q_;
  Operand keys_[2];  // k and v
  std::optional<KeyBuffer> buffer_;
  RecvBufferRows recv_buffers_;   // of results of queries
  std::vector<int> casts_;        // by stage; -1: nothing comes
  std::vector<FloatRef> maxima_;  // by group: a row for the own queries, and one for each call of others'
  std::vector<int64_t> num_maxima_;
};

template <class Arrive, class Attend, class SendBack>
void MovementWriter::play_stages(const Arrive& arrive, const Attend& attend, const SendBack& send_back) {
  size_t next = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (casts_[s] >= 0) writer_.wait(casts_[s]);
    if (!on_stream() && s + 1 < steps_.size() && casts_[s + 1] >= 0) writer_.cast(casts_[s + 1]);
    writer_.begin_step(s);
    arrive(s);
    for (; next < calls_.size() && calls_[next].stage == s; ++next) attend(calls_[next], next);
    send_back(s);
  }
}

}  // namespace tangram
