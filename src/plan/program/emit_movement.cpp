// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward: q, k and v go out to where the plan computes, out and lse come back and are joined by lse. Backward: q,
// dout, lse and delta go out with k and v; parts of dq, dk and dv come back and are added by their owner.
//
// Rows of the shard are taken by groups of heads, one group after the other, as the tables count them.
#include "plan/program/emit_movement.hpp"

#include <limits>
#include <optional>
#include <utility>

#include "core/require.hpp"
#include "plan/program/key_rows.hpp"
#include "plan/program/movement_calls.hpp"

namespace tangram {

namespace {

/// Results of rows: out, and lse with dim 1.
struct PartialRef {
  TensorRef out, lse;
};

FloatRef floats_of_rows(const TensorRef& ref) { return {ref.place, ref.first_row * ref.heads, ref.heads, ref.region}; }

class MovementWriter {
 public:
  MovementWriter(const Plan& plan, int rank, bool backward, const CallShape& call, const ProgramTarget& target)
      : plan_(plan),
        pass_(backward ? plan.movement.backward : plan.movement.forward),
        self_(static_cast<size_t>(rank)),
        rank_(pass_[self_]),
        groups_(plan.movement.head_groups),
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
  }

  Program forward();
  Program backward(bool kept);

 private:
  TensorRef of_group(const TensorRef& given, int group) const { return heads_of_group(given, group, groups_); }
  Range rows_of_group(int group) const { return {group * given_.q.rows, (group + 1) * given_.q.rows}; }
  /// Memory for rows with the heads of one group.
  TensorRef work(DType dtype, int64_t rows, const TensorRef& like) {
    return writer_.work(dtype, rows, like.heads / groups_, like.dim);
  }
  PartialRef partial(int64_t rows) {
    return {work(DType::kFloat32, rows, given_.out), work(DType::kFloat32, rows, given_.lse)};
  }
  /// A tensor by groups: copied, or with one group itself.
  TensorRef grouped(const TensorRef& given, std::vector<RowSumOp>& copies);
  /// Where the sum of all of a result is made, by groups.
  TensorRef sum_of(const TensorRef& given, DType dtype) {
    return groups_ == 1 ? sum_for(writer_, given, dtype) : work(DType::kFloat32, groups_ * given.rows, given);
  }
  /// Writes the sum, and what came from others, to the tensor of all heads.
  void write_groups(const TensorRef& sum, const TensorRef& others, const TensorRef& given);

  /// Makes what is fetched, which is first so that it can be kept.
  void begin(bool keeps);
  void fill_keys();
  /// The cast of each stage: queries and keys.
  void add_casts(const std::vector<std::pair<TensorRef, TensorRef>>& with_queries, const char* label, bool with_keys);
  /// Plays the stages: `attend` with the number of each call, `send_back` after each stage.
  template <class Attend, class SendBack>
  void play_stages(const Attend& attend, const SendBack& send_back);
  AttendOp attend_to(const MovementCall& call, size_t mask) const;
  FloatRef sink_of(Place place, int group) const {
    const int num_heads = given_.q.heads;
    return call_.seqlen_sink > 0 ? FloatRef{place, group * (num_heads / groups_), num_heads} : FloatRef{};
  }
  void make_maxima();

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
  TensorRef q_, fetched_q_;
  PairRef keys_;
  std::optional<KeyBuffer> buffer_;
  std::vector<int> casts_;        // by stage; -1: nothing comes
  std::vector<FloatRef> maxima_;  // by group: a row for the own queries, and one for each call of others'
  std::vector<int64_t> num_maxima_;
};

TensorRef MovementWriter::grouped(const TensorRef& given, std::vector<RowSumOp>& copies) {
  if (groups_ == 1) return given;
  const TensorRef result = work(given.dtype, groups_ * given.rows, given);
  for (int group = 0; group < groups_; ++group) {
    copies.push_back({of_group(given, group), {}, result.slice({group * given.rows, (group + 1) * given.rows})});
  }
  return result;
}

void MovementWriter::write_groups(const TensorRef& sum, const TensorRef& others, const TensorRef& given) {
  if (sum == given && others.rows == 0) return;
  std::vector<RowSumOp> sums;
  for (int group = 0; group < groups_; ++group) {
    const Range rows = rows_of_group(group);
    sums.push_back({sum.slice(rows), others.rows == 0 ? TensorRef{} : others.slice(rows), of_group(given, group)});
  }
  writer_.sum_rows(std::move(sums));
}

void MovementWriter::begin(bool keeps) {
  const HeadConfig& h = plan_.config.heads;
  fetched_q_ = writer_.arena(h.dtype, rank_.remote_q_rows, h.num_heads_q / groups_, h.head_dim);
  buffer_.emplace(writer_, layout_, h.dtype, key_heads_, keeps);
  if (keeps) writer_.keep_regions();
  std::vector<RowSumOp> copies;
  q_ = grouped(given_.q, copies);
  writer_.sum_rows(std::move(copies));
}

void MovementWriter::fill_keys() {
  std::vector<RowSumOp> copies;
  keys_ = {grouped(given_.keys.k, copies), grouped(given_.keys.v, copies)};
  writer_.sum_rows(std::move(copies));
  buffer_->fill(writer_, keys_);
}

void MovementWriter::add_casts(const std::vector<std::pair<TensorRef, TensorRef>>& with_queries, const char* label,
                               bool with_keys) {
  for (size_t s = 0; s < steps_.size(); ++s) {
    Cast cast{{}, false, static_cast<int>(s)};
    for (const auto& [source, target] : with_queries) {
      if (steps_[s].moves_q) cast.items.push_back({borrowed(rank_.stages[s].q), source, target, label});
    }
    if (steps_[s].moves_kv && with_keys) {
      const auto exchange = borrowed(rank_.stages[s].kv);
      cast.items.push_back({exchange, keys_.k, buffer_->landing().k, "kv stage"});
      cast.items.push_back({exchange, keys_.v, buffer_->landing().v, "kv stage"});
    }
    casts_.push_back(cast.items.empty() ? -1 : writer_.add_cast(std::move(cast)));
  }
}

template <class Attend, class SendBack>
void MovementWriter::play_stages(const Attend& attend, const SendBack& send_back) {
  size_t next = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (casts_[s] >= 0) writer_.wait(casts_[s]);
    if (s + 1 < steps_.size() && casts_[s + 1] >= 0) writer_.cast(casts_[s + 1]);
    for (; next < calls_.size() && calls_[next].stage == s; ++next) attend(calls_[next], next);
    writer_.begin_step(s);
    send_back(s);
  }
}

AttendOp MovementWriter::attend_to(const MovementCall& call, size_t mask) const {
  AttendOp op;
  op.mask = static_cast<int>(mask);
  op.q = (call.fetched ? fetched_q_ : q_).slice(call.rows);
  op.k = buffer_->rows().k;
  op.v = buffer_->rows().v;
  op.accumulate = !call.fetched && call.stage > 0;
  op.stage = static_cast<int>(call.stage);
  return op;
}

void MovementWriter::make_maxima() {
  num_maxima_.assign(static_cast<size_t>(groups_), 1);
  for (const MovementCall& call : calls_) num_maxima_[static_cast<size_t>(call.group)] += call.fetched ? 1 : 0;
  for (const int64_t count : num_maxima_) maxima_.push_back(writer_.float_work(count, given_.q.heads / groups_));
}

Program MovementWriter::forward() {
  begin(call_.keeps);
  fill_keys();
  const int64_t own_rows = groups_ * given_.q.rows;
  const PartialRef own{sum_of(given_.out, call_.out), sum_of(given_.lse, DType::kFloat32)};
  const PartialRef fetched = partial(rank_.remote_q_rows);
  const PartialRef others = partial(lends_q_ ? own_rows : 0);  // what others compute
  if (lends_q_) {
    writer_.zero(others.out);
    writer_.copy_floats(
        {{{}, floats_of_rows(others.lse), own_rows, others.lse.heads, -std::numeric_limits<float>::infinity()}});
  }
  make_maxima();
  std::vector<int64_t> next_maximum(maxima_.size(), 1);
  add_casts({{q_, fetched_q_}}, "q stage", true);
  const auto attend = [&](const MovementCall& call, size_t mask) {
    AttendOp op = attend_to(call, mask);
    const PartialRef& results = call.fetched ? fetched : own;
    op.out = results.out.slice(call.rows);
    op.lse = floats_of_rows(results.lse.slice(call.rows));
    const auto group = static_cast<size_t>(call.group);
    op.max_logits = maxima_[group];
    if (call.fetched) op.max_logits.offset = op.max_logits.stride * next_maximum[group]++;
    writer_.attend(op);
  };
  play_stages(attend, [&](size_t stage) {
    if (!steps_[stage].moves_q) return;
    const auto exchange = borrowed(rank_.stages[stage].q);
    const std::vector<CastItem> items = {{exchange, fetched.out, others.out, "out stage"},
                                         {exchange, fetched.lse, others.lse, "out stage"}};
    writer_.cast(writer_.add_cast({items, true, static_cast<int>(stage), true, true}));
  });
  writer_.wait_for_all();
  writer_.begin_step(kAtEnd);
  for (int group = 0; group < groups_; ++group) {
    const Range rows = rows_of_group(group);
    const FloatRef& from = maxima_[static_cast<size_t>(group)];
    const int heads = given_.q.heads / groups_;
    writer_.append(
        {LargestOp{from, {Place::kMaxLogits, group * heads, heads}, num_maxima_[static_cast<size_t>(group)], heads}});
    MergeOp merge{own.out.slice(rows), own.lse.slice(rows), {}, {}, sink_of(Place::kSink, group)};
    if (lends_q_) {
      merge.other_out = others.out.slice(rows);
      merge.other_lse = others.lse.slice(rows);
    }
    if (lends_q_ || call_.seqlen_sink > 0) writer_.append(merge);
  }
  write_groups(own.out, {}, given_.out);
  write_groups(own.lse, {}, given_.lse);
  return writer_.take();
}

Program MovementWriter::backward(bool kept) {
  const DType travel = plan_.config.reduce_dtype;
  const int64_t own_rows = groups_ * given_.q.rows;
  begin(kept);
  if (!kept) fill_keys();
  std::vector<RowSumOp> copies;
  const TensorRef dout = grouped(given_.dout, copies), lse = grouped(given_.lse, copies);
  writer_.sum_rows(std::move(copies));
  const TensorRef delta = work(DType::kFloat32, own_rows, given_.lse);
  for (int group = 0; group < groups_; ++group) {
    writer_.append(
        DeltaOp{of_group(given_.out, group), of_group(given_.dout, group), delta.slice(rows_of_group(group))});
  }
  const auto landing = [&](const TensorRef& like) {
    return writer_.arena(like.dtype, rank_.remote_q_rows, like.heads, like.dim);
  };
  const TensorRef fetched_dout = landing(dout), fetched_lse = landing(lse), fetched_delta = landing(delta);
  std::vector<std::pair<TensorRef, TensorRef>> with_queries = {
      {dout, fetched_dout}, {lse, fetched_lse}, {delta, fetched_delta}};
  if (!kept) with_queries.emplace_back(q_, fetched_q_);
  add_casts(with_queries, "dout stage", !kept);

  const TensorRef own_dq = sum_of(given_.dq, call_.dq);
  const TensorRef fetched_dq = work(DType::kFloat32, rank_.remote_q_rows, given_.dq);
  const TensorRef sent_dq = travel == DType::kFloat32 ? fetched_dq : work(travel, rank_.remote_q_rows, given_.dq);
  const TensorRef dq_of_others = work(travel, lends_q_ ? own_rows : 0, given_.dq);
  if (lends_q_) writer_.zero(dq_of_others);
  bool moves_kv = false;
  for (const MovementStep& step : steps_) moves_kv = moves_kv || step.moves_kv;
  KeyGradients grads(writer_, layout_, key_heads_, travel, moves_kv, lends_kv_ ? groups_ * given_.keys.k.rows : 0);

  const size_t first_mask = movement_calls(plan_, plan_.movement.forward[self_]).size();
  const auto attend = [&](const MovementCall& call, size_t number) {
    AttendOp op = attend_to(call, first_mask + number);
    const auto rows_of = [&](const TensorRef& own, const TensorRef& fetched) {
      return (call.fetched ? fetched : own).slice(call.rows);
    };
    op.backward = true;
    op.lse = floats_of_rows(rows_of(lse, fetched_lse));
    op.delta = floats_of_rows(rows_of(delta, fetched_delta));
    op.dout = rows_of(dout, fetched_dout);
    op.dq = rows_of(own_dq, fetched_dq);
    op.dk = grads.computed().k;
    op.dv = grads.computed().v;
    op.accumulate_kv = true;
    writer_.attend(op);
  };
  play_stages(attend, [&](size_t stage) {
    if (steps_[stage].moves_q) {
      const Exchange& exchange = rank_.stages[stage].q;
      std::vector<RowSumOp> rounded;
      for (const RowCopy& copy : exchange.recvs) {
        if (sent_dq != fetched_dq) rounded.push_back({fetched_dq.slice(copy.rows), {}, sent_dq.slice(copy.rows)});
      }
      writer_.sum_rows(std::move(rounded));
      const CastItem item{borrowed(exchange), sent_dq, dq_of_others, "dq stage"};
      writer_.cast(writer_.add_cast({{item}, true, static_cast<int>(stage), true}));
    }
    for (const size_t complete : steps_[stage].complete_kv) {
      grads.send_back(writer_, rank_.stages[complete].kv, complete);
    }
  });
  writer_.begin_step(kAtEnd);
  for (int group = 0; group < groups_ && call_.seqlen_sink > 0 && call_.wants_dsink; ++group) {
    const Range rows = rows_of_group(group);
    writer_.append(
        SinkGradOp{lse.slice(rows), delta.slice(rows), sink_of(Place::kSink, group), sink_of(Place::kDsink, group)});
  }
  writer_.wait_for_all();
  write_groups(own_dq, dq_of_others, given_.dq);
  grads.finish(writer_, given_.key_grads, groups_);
  return writer_.take();
}

}  // namespace

std::vector<ProgramMask> movement_masks(const Plan& plan, int rank) {
  const HeadConfig& h = plan.config.heads;
  const int groups = plan.movement.head_groups;
  const auto cp_size = static_cast<size_t>(plan.cp_size());
  TANGRAM_ASSERT(plan.movement.forward.size() == cp_size && plan.movement.backward.size() == cp_size);
  std::vector<ProgramMask> masks;
  for (const bool backward : {false, true}) {
    const MovementRank& of = (backward ? plan.movement.backward : plan.movement.forward)[static_cast<size_t>(rank)];
    for (MovementCall& call : movement_calls(plan, of)) {
      masks.push_back({{call.rows.size(), of.kv_rows, h.num_heads_q / groups, h.num_heads_kv / groups, h.head_dim,
                        h.head_dim_v, h.dtype},
                       std::move(call.slices),
                       true,
                       backward ? ProgramMask::Passes::kBackward : ProgramMask::Passes::kForward});
    }
  }
  return masks;
}

Program movement_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target) {
  return MovementWriter(plan, rank, false, call, target).forward();
}

Program movement_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept) {
  return MovementWriter(plan, rank, true, call, target).backward(kept);
}

}  // namespace tangram
