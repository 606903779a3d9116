// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward, stages add up in float32 through (out, lse), and the rows of the next stage travel meanwhile. Backward, dq
// adds up in float32; dk and dv of a stage's rows are complete once it has computed, and travel to their owners while
// later stages compute.
#include "plan/program/emit_kv.hpp"

#include <optional>

#include "plan/program/key_rows.hpp"
#include "plan/stages.hpp"

namespace tangram {

namespace {

class KvWriter {
 public:
  KvWriter(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);

  Program forward();
  Program backward(bool kept);

 private:
  /// Between the rows that a stage brings, one after the other, and the buffer.
  std::vector<RowSumOp> kept_copies(const Stage& stage, const PairRef& kept, bool restores) const;
  PairRef make_kept(const Stage& stage);
  /// The casts of the stages from 1 on; the last one's rows may be kept instead.
  void add_casts(const std::vector<Stage>& stages, bool kept);
  AttendOp attend_to(size_t stage, size_t first_mask) const;

  const Plan& plan_;
  const RankPlan& rank_;
  const CallShape call_;
  ProgramWriter writer_;
  const PassArguments given_;
  const KeyLayout layout_;
  std::optional<KeyBuffer> buffer_;
  std::vector<int> casts_;
};

KvWriter::KvWriter(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target)
    : plan_(plan),
      rank_(plan.ranks[static_cast<size_t>(rank)]),
      call_(call),
      writer_(target),
      given_(plan, call),
      layout_(rank_.segments, rank, rank_.kv_rows, rank_.remote_kv_rows) {}

PairRef KvWriter::make_kept(const Stage& stage) {
  const PairRef kept = work_pair(writer_, plan_.config.heads.dtype, stage.exchange.rows_received(), given_.keys);
  writer_.keep_regions();
  return kept;
}

std::vector<RowSumOp> KvWriter::kept_copies(const Stage& stage, const PairRef& kept, bool restores) const {
  std::vector<RowSumOp> copies;
  int64_t row = 0;
  for (const RowCopy& copy : stage.exchange.recvs) {
    const PairRef in_buffer = slice(buffer_->rows(), copy.rows), in_kept = slice(kept, {row, row + copy.rows.size()});
    append_copies(copies, restores ? in_kept : in_buffer, restores ? in_buffer : in_kept);
    row += copy.rows.size();
  }
  return copies;
}

void KvWriter::add_casts(const std::vector<Stage>& stages, bool kept) {
  buffer_.emplace(writer_, layout_, plan_.config.heads.dtype, given_.keys, false);
  buffer_->fill(writer_, given_.keys);
  casts_.push_back(-1);
  for (size_t s = 1; s + (kept ? 1 : 0) < stages.size(); ++s) {
    casts_.push_back(add_pair_cast(writer_, borrowed(stages[s].exchange), given_.keys, buffer_->landing(), "kv stage",
                                   {{}, false, static_cast<int>(s)}));
  }
}

AttendOp KvWriter::attend_to(size_t stage, size_t first_mask) const {
  AttendOp op;
  op.mask = static_cast<int>(first_mask + stage);
  op.q = given_.q;
  op.k = buffer_->rows().k;
  op.v = buffer_->rows().v;
  op.out = given_.out;
  op.lse = {Memory::kLse, 0, plan_.config.heads.num_heads_q};
  op.step = static_cast<int>(stage);
  return op;
}

Program KvWriter::forward() {
  const std::vector<Stage>& stages = rank_.forward;
  const int num_heads = plan_.config.heads.num_heads_q;
  PairRef kept;
  if (call_.keeps) kept = make_kept(stages.back());
  add_casts(stages, false);
  size_t last = 0;  // the sink enters there
  for (size_t s = 1; s < stages.size(); ++s) last = stages[s].slices.empty() ? last : s;
  const TensorRef out = last > 0 ? sum_for(writer_, given_.out, call_.out) : given_.out;
  if (stages.size() > 1) writer_.cast(casts_[1]);
  for (size_t s = 0; s < stages.size(); ++s) {
    if (s > 0) {
      writer_.wait(casts_[s]);
      if (s + 1 < stages.size()) writer_.cast(casts_[s + 1]);
    }
    if (s > 0 && stages[s].slices.empty()) continue;
    AttendOp op = attend_to(s, 0);
    op.out = out;
    op.max_logits = {Memory::kMaxLogits, 0, num_heads};
    op.accumulate = s > 0;
    if (s == last && call_.seqlen_sink > 0) op.sink = {Memory::kSink, 0, num_heads};
    writer_.attend(op);
  }
  if (call_.keeps) writer_.sum_rows(kept_copies(stages.back(), kept, false));
  writer_.begin_step(kAtEnd);
  if (out != given_.out) writer_.copy_rows(out, given_.out);
  return writer_.take();
}

Program KvWriter::backward(bool kept) {
  const std::vector<Stage>& stages = rank_.backward;
  PairRef kept_rows;
  if (kept) kept_rows = make_kept(stages.back());
  add_casts(stages, kept);
  if (kept) writer_.sum_rows(kept_copies(stages.back(), kept_rows, true));
  const bool moves = stages.size() > 1;
  KeyGradients grads(writer_, layout_, given_.keys, plan_.config.reduce_dtype, moves, given_.keys.k.rows);
  const TensorRef dq = sum_for(writer_, given_.dq, call_.dq);
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
      op.dout = given_.dout;
      op.dq = dq;
      op.dk = grads.computed().k;
      op.dv = grads.computed().v;
      op.accumulate = !is_first_call;
      op.accumulate_kv = true;
      if (is_first_call && call_.seqlen_sink > 0) {  // dsink depends on no keys, so any one call gives all of it
        op.sink = {Memory::kSink, 0, plan_.config.heads.num_heads_q};
        if (call_.wants_dsink) op.dsink = {Memory::kDsink, 0, plan_.config.heads.num_heads_q};
      }
      writer_.attend(op);
      is_first_call = false;
    }
    if (s != 0) grads.send_back(writer_, stages[s].exchange, s);
  }
  writer_.begin_step(kAtEnd);
  if (dq != given_.dq) writer_.copy_rows(dq, given_.dq);
  writer_.wait_for_all();
  grads.finish(writer_, given_.key_grads, 1);
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
                       backward ? AttnPasses::kBackward : AttnPasses::kForward});
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
