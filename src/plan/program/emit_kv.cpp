// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward, calls add up in float32 through (out, lse), and the rows of the next stage move meanwhile. Backward, dq adds
// up in float32. Gradients dk and dv of a stage's rows are complete once it has computed, and move to their owners
// while later stages compute. On a stream all rows are sent for at once, and one call may do the work of all stages.
#include <algorithm>
#include <optional>
#include <type_traits>

#include "plan/program/emitters.hpp"
#include "plan/program/key_calls.hpp"
#include "plan/program/key_returns.hpp"
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
  bool on_stream() const { return !writer_.target().sends_from_anywhere; }

  /// Between the rows that a stage brings, one after the other, and the buffer.
  std::vector<RowSumOp> kept_copies(const Stage& stage, const PairRef& kept, bool restores) const;
  PairRef make_kept(const Stage& stage);
  /// Makes the buffer and the casts of the stages from 1 on; the last one's rows may be kept instead.
  void add_casts(const std::vector<Stage>& stages, bool kept);
  /// Begins the casts of a stream, which may keep all rows.
  void open(const std::vector<Stage>& stages, bool keeps, bool kept);
  /// `op` needs the keys of the stages of a call.
  void await(const KeyCall& call, const std::vector<KeyReadyFlag>& late, AttendOp& op);
  AttendOp attend_to(const KeyCall& call, size_t mask) const;
  /// `gradients`: KeyGradients or KeyReturns.
  template <class Gradients>
  Program backward(const std::vector<KeyCall>& calls, bool kept, Gradients gradients);

  const Plan& plan_;
  const int self_;
  const RankPlan& rank_;
  const CallShape call_;
  ProgramWriter writer_;
  const PassArguments given_;
  const KeyLayout layout_;
  PairRef rows_;  // that calls read
  std::optional<KeyBuffer> buffer_;
  std::vector<int> casts_;
};

KvWriter::KvWriter(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target)
    : plan_(plan),
      self_(rank),
      rank_(plan.ranks()[static_cast<size_t>(rank)]),
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
  rows_ = buffer_->rows();
  casts_.push_back(-1);
  for (size_t s = 1; s + (kept ? 1 : 0) < stages.size(); ++s) {
    casts_.push_back(add_pair_cast(writer_, borrowed(stages[s].exchange), given_.keys, buffer_->recv_buffers(),
                                   "kv stage", {{}, false, static_cast<int>(s)}));
  }
}

void KvWriter::open(const std::vector<Stage>& stages, bool keeps, bool kept) {
  if (reads_shard(plan_)) {
    rows_ = slice(given_.keys, layout_.own.empty() ? Range{0, 0} : layout_.own.front().shard);
    return;
  }
  rows_ = arena_pair(writer_, plan_.config.heads.dtype, rank_.kv_rows, given_.keys);
  if (keeps) writer_.keep_regions();
  if (kept) return;
  const ProgramTarget& target = writer_.target();
  OpenOp opening;
  for (const LocalKvRange& own : to_copy(own_local_ranges(rank_, self_), local_ranges_elsewhere(plan_, self_, target),
                                         std::max<int64_t>(target.local_kv_halo, 0))) {
    append_copies(opening.own, slice(given_.keys, {own.row, own.row + own.keys.size()}), slice(rows_, own.keys));
  }
  writer_.append(opening);
  casts_.push_back(-1);
  for (size_t s = 1; s < stages.size(); ++s) {
    casts_.push_back(add_pair_cast(writer_, borrowed(stages[s].exchange), given_.keys, rows_, "kv stage",
                                   {{}, false, static_cast<int>(s)}));
    writer_.cast(casts_.back());
  }
}

void KvWriter::await(const KeyCall& call, const std::vector<KeyReadyFlag>& late, AttendOp& op) {
  for (size_t s = std::max<size_t>(call.begin, 1); s < std::min(call.end, casts_.size()); ++s) {
    if (!late.empty()) {
      op.ready_flags.push_back(casts_[s]);
      continue;
    }
    writer_.wait(casts_[s]);
  }
}

AttendOp KvWriter::attend_to(const KeyCall& call, size_t mask) const {
  AttendOp op;
  op.mask = static_cast<int>(mask);
  op.q = given_.q;
  op.k = rows_.k;
  op.v = rows_.v;
  op.out = given_.out;
  op.lse = {Memory::kLse, 0, plan_.config.heads.num_heads_q};
  op.step = static_cast<int>(call.begin);
  if (!local_ranges_elsewhere(plan_, self_, writer_.target()).empty()) {
    op.k_local = given_.keys.k;
    op.v_local = given_.keys.v;
  }
  return op;
}

/// Keys that come while the one call of a pass runs.
std::vector<KeyReadyFlag> awaited_keys(const Plan& plan, int rank, AttnPass pass, const ProgramTarget& target) {
  const bool is_forward = pass == AttnPass::kForward;
  if ((is_forward ? target.forward_calls : target.backward_calls) != KeyCalls::kAsTheyCome) return {};
  if (!is_forward && can_keep(plan)) return {};
  return ready_flags_of(plan.ranks()[static_cast<size_t>(rank)], rank, plan.cp_size(), pass);
}

Program KvWriter::forward() {
  const std::vector<Stage>& stages = rank_.forward;
  const std::vector<KeyCall> calls = key_calls(rank_, AttnPass::kForward, writer_.target());
  const std::vector<KeyReadyFlag> late = awaited_keys(plan_, self_, AttnPass::kForward, writer_.target());
  const int num_heads = plan_.config.heads.num_heads_q;
  PairRef kept;
  if (on_stream()) {
    open(stages, call_.keeps, false);
  } else {
    if (call_.keeps) kept = make_kept(stages.back());
    add_casts(stages, false);
  }
  size_t last = 0;  // the sink enters there
  for (size_t i = 1; i < calls.size(); ++i) last = calls[i].is_made() ? i : last;
  const TensorRef out = last > 0 ? sum_for(writer_, given_.out, call_.out) : given_.out;
  if (!on_stream() && stages.size() > 1) writer_.cast(casts_[1]);
  for (size_t i = 0; i < calls.size(); ++i) {
    AttendOp op = attend_to(calls[i], i);
    await(calls[i], late, op);
    if (!on_stream() && i > 0 && i + 1 < stages.size()) writer_.cast(casts_[i + 1]);
    if (!calls[i].is_made()) continue;
    op.out = out;
    op.max_logits = {Memory::kMaxLogits, 0, num_heads};
    op.accumulate = i > 0;
    if (i == last && call_.seqlen_sink > 0) op.sink = {Memory::kSink, 0, num_heads};
    writer_.attend(op);
  }
  if (call_.keeps && !on_stream()) writer_.sum_rows(kept_copies(stages.back(), kept, false));
  writer_.begin_step(kAtEnd);
  if (out != given_.out) writer_.copy_rows(out, given_.out);
  return writer_.take();
}

Program KvWriter::backward(bool kept) {
  const std::vector<Stage>& stages = rank_.backward;
  const std::vector<KeyCall> calls = key_calls(rank_, AttnPass::kBackward, writer_.target());
  if (on_stream()) {
    open(stages, kept, kept);
    return backward(calls, kept, KeyReturns(writer_, plan_, self_, given_, calls.size()));
  }
  PairRef kept_rows;
  if (kept) kept_rows = make_kept(stages.back());
  add_casts(stages, kept);
  if (kept) writer_.sum_rows(kept_copies(stages.back(), kept_rows, true));
  const bool moves = stages.size() > 1;
  return backward(calls, kept,
                  KeyGradients(writer_, layout_, given_.keys, plan_.config.reduce_dtype, moves, given_.keys.k.rows));
}

template <class Gradients>
Program KvWriter::backward(const std::vector<KeyCall>& calls, bool kept, Gradients gradients) {
  const std::vector<Stage>& stages = rank_.backward;
  const size_t first_mask = key_calls(rank_, AttnPass::kForward, writer_.target()).size();
  const std::vector<KeyReadyFlag> late = awaited_keys(plan_, self_, AttnPass::kBackward, writer_.target());
  const std::vector<size_t> order = stage_order(calls.size(), kept && calls.size() > 1);
  const bool adds_up =
      !on_stream() || std::count_if(calls.begin(), calls.end(), [](const KeyCall& call) { return call.is_made(); }) > 1;
  const TensorRef dq = adds_up ? sum_for(writer_, given_.dq, call_.dq) : given_.dq;
  bool is_first_call = true;
  for (size_t i = 0; i < order.size(); ++i) {
    const KeyCall& call = calls[order[i]];
    AttendOp op = attend_to(call, first_mask + order[i]);
    await(call, late, op);
    if (!on_stream() && i + 1 < order.size() && order[i + 1] != 0 && order[i + 1] < casts_.size()) {
      writer_.cast(casts_[order[i + 1]]);
    }
    if (call.is_made()) {
      op.backward = true;
      op.dout = given_.dout;
      op.dq = dq;
      gradients.add_to(op);
      op.accumulate = !is_first_call;
      if (is_first_call && call_.seqlen_sink > 0) {  // dsink depends on no keys, so any one call gives all of it
        op.sink = {Memory::kSink, 0, plan_.config.heads.num_heads_q};
        if (call_.wants_dsink) op.dsink = {Memory::kDsink, 0, plan_.config.heads.num_heads_q};
      }
      writer_.attend(op);
      is_first_call = false;
    }
    for (size_t s = std::max<size_t>(call.begin, 1); s < call.end; ++s) {
      gradients.send_back(writer_, stages[s].exchange, s);
    }
  }
  writer_.begin_step(kAtEnd);
  if (dq != given_.dq) writer_.copy_rows(dq, given_.dq);
  if constexpr (std::is_same_v<Gradients, KeyGradients>) {
    writer_.wait_for_all();
    gradients.finish(writer_, given_.key_grads, 1);
  } else {
    gradients.finish(writer_);
  }
  return writer_.take();
}

}  // namespace

std::vector<ProgramMask> kv_masks(const Plan& plan, int rank, const ProgramTarget& target) {
  const RankPlan& of = plan.ranks()[static_cast<size_t>(rank)];
  const AttnShape shape = rank_shape(plan, rank);
  const std::vector<LocalKvRange> local_ranges = local_ranges_elsewhere(plan, rank, target);
  std::vector<ProgramMask> masks;
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    for (const KeyCall& call : key_calls(of, pass, target)) {
      masks.push_back({shape,
                       {call.slices.begin(), call.slices.end()},
                       call.is_made(),
                       pass == AttnPass::kForward ? AttnPasses::kForward : AttnPasses::kBackward,
                       awaited_keys(plan, rank, pass, target),
                       local_ranges,
                       target.local_kv_halo});
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
