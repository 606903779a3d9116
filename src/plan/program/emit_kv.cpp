// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward, stages add up in float32 through (out, lse), and the rows of the next stage travel meanwhile. Backward, dq
// adds up in float32; dk and dv of a stage's rows are complete once it has computed, and travel to their owners while
// later stages compute.
#include "plan/program/emit_kv.hpp"

#include <utility>

#include "plan/program/rows.hpp"
#include "plan/stages.hpp"

namespace tangram {

namespace {

constexpr int kAtEnd = -1;  // the step of what finishes a pass

class KvWriter {
 public:
  KvWriter(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);

  Program forward();
  Program backward(bool kept);

 private:
  bool owns(const KvSegment& segment) const { return segment.owner == self_; }
  static Range rows_of(const KvSegment& segment) { return {segment.row, segment.row + segment.global.size()}; }
  static Range shard_rows_of(const KvSegment& segment) {
    return {segment.owner_row, segment.owner_row + segment.global.size()};
  }
  static PairRef slice(const PairRef& pair, const Range& rows) { return {pair.k.slice(rows), pair.v.slice(rows)}; }
  static void append_copy_of(std::vector<RowSumOp>& sums, const PairRef& source, const PairRef& result) {
    sums.push_back({source.k, {}, result.k});
    sums.push_back({source.v, {}, result.v});
  }

  /// The rank's K/V rows, local and remote, in global row order (NOTE [global row order]). Without remote rows, and
  /// where they would be a stretch of the shard, the shard itself.
  void make_buffer();
  /// Between the rows that a stage brings, one after the other, and the buffer.
  std::vector<RowSumOp> kept_copies(const Stage& stage, const PairRef& kept, bool restores) const;
  /// The casts of the stages from 1 on; the last one's rows may be kept instead.
  void add_casts(const std::vector<Stage>& stages, bool kept);
  AttendOp attend_to(size_t stage, size_t first_mask) const;
  /// Sends the gradients of the rows of a stage to their owners.
  void return_grads(const Stage& stage, size_t number);
  void finish_grads();

  const Plan& plan_;
  const RankPlan& rank_;
  const int self_;
  const CallShape call_;
  ProgramWriter writer_;
  TensorRef q_, out_, dout_, dq_;
  PairRef shard_, shard_grads_;
  PairRef buffer_;    // what attention reads
  PairRef landing_;   // where remote rows land, empty where the shard serves
  PairRef computed_;  // gradients of the buffer
  PairRef sent_;      // the same in reduce_dtype
  PairRef owned_;     // what others have added to gradients of the shard
  std::vector<int> casts_, returns_;
};

KvWriter::KvWriter(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target)
    : plan_(plan), rank_(plan.ranks[static_cast<size_t>(rank)]), self_(rank), call_(call), writer_(target) {
  const HeadConfig& h = plan.config.heads;
  const int64_t q_rows = plan.q_dispatch.rows_per_rank(), k_rows = plan.k_dispatch.rows_per_rank();
  q_ = argument(Place::kQ, h.dtype, q_rows, h.num_heads_q, h.head_dim);
  out_ = argument(Place::kOut, call.out, q_rows, h.num_heads_q, h.head_dim_v);
  dout_ = argument(Place::kDout, call.dout, q_rows, h.num_heads_q, h.head_dim_v);
  dq_ = argument(Place::kDq, call.dq, q_rows, h.num_heads_q, h.head_dim);
  shard_ = {argument(Place::kK, h.dtype, k_rows, h.num_heads_kv, h.head_dim),
            argument(Place::kV, h.dtype, k_rows, h.num_heads_kv, h.head_dim_v)};
  shard_grads_ = {argument(Place::kDk, call.dk, k_rows, h.num_heads_kv, h.head_dim),
                  argument(Place::kDv, call.dv, k_rows, h.num_heads_kv, h.head_dim_v)};
}

void KvWriter::make_buffer() {
  const DType dtype = plan_.config.heads.dtype;
  if (rank_.remote_kv_rows == 0 && rank_.segments.size() <= 1) {
    const int64_t first = rank_.segments.empty() ? 0 : rank_.segments.front().owner_row;
    buffer_ = slice(shard_, {first, first + rank_.kv_rows});
    landing_ = arena_pair(writer_, dtype, 0, shard_);
    return;
  }
  buffer_ = landing_ = arena_pair(writer_, dtype, rank_.kv_rows, shard_);
  std::vector<RowSumOp> copies;
  for (const KvSegment& segment : rank_.segments) {
    if (owns(segment)) append_copy_of(copies, slice(shard_, shard_rows_of(segment)), slice(buffer_, rows_of(segment)));
  }
  writer_.sum_rows(std::move(copies));
}

std::vector<RowSumOp> KvWriter::kept_copies(const Stage& stage, const PairRef& kept, bool restores) const {
  std::vector<RowSumOp> copies;
  int64_t row = 0;
  for (const RowCopy& copy : stage.exchange.recvs) {
    const PairRef in_buffer = slice(buffer_, copy.rows), in_kept = slice(kept, {row, row + copy.rows.size()});
    append_copy_of(copies, restores ? in_kept : in_buffer, restores ? in_buffer : in_kept);
    row += copy.rows.size();
  }
  return copies;
}

void KvWriter::add_casts(const std::vector<Stage>& stages, bool kept) {
  casts_.push_back(-1);
  for (size_t s = 1; s + (kept ? 1 : 0) < stages.size(); ++s) {
    casts_.push_back(add_pair_cast(writer_, borrowed(stages[s].exchange), shard_, landing_, "kv stage",
                                   {{}, false, static_cast<int>(s)}));
  }
}

AttendOp KvWriter::attend_to(size_t stage, size_t first_mask) const {
  AttendOp op;
  op.mask = static_cast<int>(first_mask + stage);
  op.q = q_;
  op.k = buffer_.k;
  op.v = buffer_.v;
  op.out = out_;
  op.lse = {Place::kLse, 0, plan_.config.heads.num_heads_q};
  op.stage = static_cast<int>(stage);
  return op;
}

Program KvWriter::forward() {
  const std::vector<Stage>& stages = rank_.forward;
  const int num_heads = plan_.config.heads.num_heads_q;
  PairRef kept;
  if (call_.keeps) {
    kept = work_pair(writer_, plan_.config.heads.dtype, stages.back().exchange.rows_received(), shard_);
    writer_.keep_regions();
  }
  make_buffer();
  add_casts(stages, false);
  size_t last = 0;  // the sink enters there
  for (size_t s = 1; s < stages.size(); ++s) last = stages[s].slices.empty() ? last : s;
  const TensorRef out = last > 0 ? sum_for(writer_, out_, call_.out) : out_;
  if (stages.size() > 1) writer_.cast(casts_[1]);
  for (size_t s = 0; s < stages.size(); ++s) {
    if (s > 0) {
      writer_.wait(casts_[s]);
      if (s + 1 < stages.size()) writer_.cast(casts_[s + 1]);
    }
    if (s > 0 && stages[s].slices.empty()) continue;
    AttendOp op = attend_to(s, 0);
    op.out = out;
    op.max_logits = {Place::kMaxLogits, 0, num_heads};
    op.accumulate = s > 0;
    if (s == last && call_.seqlen_sink > 0) op.sink = {Place::kSink, 0, num_heads};
    writer_.attend(op);
  }
  if (call_.keeps) writer_.sum_rows(kept_copies(stages.back(), kept, false));
  writer_.begin_step(kAtEnd);
  if (out != out_) writer_.copy_rows(out, out_);
  return writer_.take();
}

void KvWriter::return_grads(const Stage& stage, size_t number) {
  if (sent_.k != computed_.k) {
    std::vector<RowSumOp> copies;
    for (const RowCopy& copy : stage.exchange.recvs) {
      append_copy_of(copies, slice(computed_, copy.rows), slice(sent_, copy.rows));
    }
    writer_.begin_step(number);
    writer_.sum_rows(std::move(copies));
  }
  returns_.push_back(add_pair_cast(writer_, borrowed(stage.exchange), sent_, owned_, "dkv stage",
                                   {{}, true, static_cast<int>(number), true}));
  writer_.cast(returns_.back());
}

/// Shard rows: what came from others plus what this rank's own queries contributed.
void KvWriter::finish_grads() {
  for (const int stage : returns_) writer_.wait(stage);
  writer_.begin_step(kAtEnd);
  const bool has_owned = owned_.k.place != Place::kNone;
  std::vector<RowSumOp> sums;
  const auto add_unseen = [&](const Range& rows) {  // by queries of this rank
    if (rows.begin == rows.end) return;
    const PairRef result = slice(shard_grads_, rows);
    if (has_owned) {
      append_copy_of(sums, slice(owned_, rows), result);
    } else {
      writer_.zero(result.k);
      writer_.zero(result.v);
    }
  };
  int64_t row = 0;
  for (const KvSegment& segment : rank_.segments) {
    if (!owns(segment)) continue;
    const Range rows = shard_rows_of(segment);
    add_unseen({row, rows.begin});
    const PairRef local = slice(computed_, rows_of(segment)), result = slice(shard_grads_, rows);
    const PairRef remote = has_owned ? slice(owned_, rows) : PairRef{};
    sums.push_back({local.k, remote.k, result.k});
    sums.push_back({local.v, remote.v, result.v});
    row = rows.end;
  }
  add_unseen({row, shard_grads_.k.rows});
  writer_.sum_rows(std::move(sums));
}

Program KvWriter::backward(bool kept) {
  const std::vector<Stage>& stages = rank_.backward;
  const DType travel = plan_.config.reduce_dtype;
  PairRef kept_rows;
  if (kept) {
    kept_rows = work_pair(writer_, plan_.config.heads.dtype, stages.back().exchange.rows_received(), shard_);
    writer_.keep_regions();
  }
  make_buffer();
  if (kept) writer_.sum_rows(kept_copies(stages.back(), kept_rows, true));
  add_casts(stages, kept);
  computed_ = sent_ = work_pair(writer_, DType::kFloat32, rank_.kv_rows, shard_);
  writer_.zero(computed_.k);
  writer_.zero(computed_.v);
  if (stages.size() > 1) {
    owned_ = work_pair(writer_, travel, shard_.k.rows, shard_);
    writer_.zero(owned_.k);
    writer_.zero(owned_.v);
    if (travel != DType::kFloat32) sent_ = work_pair(writer_, travel, rank_.kv_rows, shard_);
  }
  const TensorRef dq = sum_for(writer_, dq_, call_.dq);
  const std::vector<size_t> order = stage_order(stages.size(), kept);
  const auto must_cast = [&](size_t stage) { return stage != 0 && !(kept && stage + 1 == stages.size()); };
  bool is_first_call = true;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t s = order[i];
    if (must_cast(s)) writer_.wait(casts_[s]);
    if (i + 1 < order.size() && must_cast(order[i + 1])) writer_.cast(casts_[order[i + 1]]);
    if (s == 0 || !stages[s].slices.empty()) {
      AttendOp op = attend_to(s, rank_.forward.size());
      op.backward = true;
      op.dout = dout_;
      op.dq = dq;
      op.dk = computed_.k;
      op.dv = computed_.v;
      op.accumulate = !is_first_call;
      op.accumulate_kv = true;
      if (is_first_call && call_.seqlen_sink > 0) {  // dsink depends on no keys, so any one call gives all of it
        op.sink = {Place::kSink, 0, plan_.config.heads.num_heads_q};
        if (call_.wants_dsink) op.dsink = {Place::kDsink, 0, plan_.config.heads.num_heads_q};
      }
      writer_.attend(op);
      is_first_call = false;
    }
    if (s != 0) return_grads(stages[s], s);
  }
  writer_.begin_step(kAtEnd);
  if (dq != dq_) writer_.copy_rows(dq, dq_);
  finish_grads();
  return writer_.take();
}

}  // namespace

std::vector<ProgramMask> kv_masks(const Plan& plan, int rank) {
  const RankPlan& of = plan.ranks[static_cast<size_t>(rank)];
  const HeadConfig& h = plan.config.heads;
  const AttnShape shape{
      plan.q_dispatch.rows_per_rank(), of.kv_rows, h.num_heads_q, h.num_heads_kv, h.head_dim, h.head_dim_v, h.dtype};
  std::vector<ProgramMask> masks;
  for (const bool backward : {false, true}) {
    const std::vector<Stage>& stages = backward ? of.backward : of.forward;
    for (size_t s = 0; s < stages.size(); ++s) {
      masks.push_back({shape, stages[s].slices, s == 0 || !stages[s].slices.empty(),
                       backward ? ProgramMask::Passes::kBackward : ProgramMask::Passes::kForward});
    }
  }
  return masks;
}

Program kv_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target) {
  return KvWriter(plan, rank, call, target).forward();
}

Program kv_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept) {
  return KvWriter(plan, rank, call, target).backward(kept);
}

}  // namespace tangram
