// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward: q, k and v go out to where the plan computes, out and lse come back and are joined by lse. Backward: q,
// dout, lse and delta go out with k and v; parts of dq, dk and dv come back and are added by their owner.
//
// Rows of the shard are taken by groups of heads, one group after the other, as the tables count them.
//
// On streams casts read the arena alone and do not add: what other ranks fetch is copied there, and parts that come
// back land in rows of their own (LandingRows), which the owner joins at the end.
#include "plan/program/emit_movement.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/require.hpp"
#include "plan/program/key_rows.hpp"
#include "plan/program/landing_rows.hpp"
#include "plan/program/movement_calls.hpp"

namespace tangram {

namespace {

/// Results of rows: out, and lse with dim 1.
struct PartialRef {
  TensorRef out, lse;
};

/// What ranks fetch: as the rank's own calls read it, and where casts take it from.
struct Operand {
  TensorRef own, sent;
};

/// Of a tensor of dim 1 with all of its heads.
FloatRef floats_of_rows(const TensorRef& ref) { return {ref.place, ref.first_row * ref.heads, ref.heads, ref.region}; }

/// Appends the copies that make rows of `to`, which may have fewer or more columns: those are filled.
void append_float_copies(std::vector<FloatCopyOp>& copies, const TensorRef& from, const TensorRef& to) {
  const int columns = std::min(from.heads, to.heads);
  copies.push_back({floats_of_rows(from), floats_of_rows(to), from.rows, columns});
  FloatRef rest = floats_of_rows(to);
  rest.offset += columns;
  copies.push_back({{}, rest, to.rows, to.heads - columns, 0});
}

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
  /// From where casts take results of `rows`.
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
  /// What calls read of floats that were fetched into `landed`: these, or memory for their columns alone.
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
  /// By groups, in `result` where there are several.
  TensorRef grouped(const TensorRef& given, const TensorRef& result, std::vector<RowSumOp>& copies);
  /// Of floats, one for each row and head.
  Operand float_operand(const TensorRef& own);
  TensorRef grouped_lse();
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
  void write_lse(const TensorRef& lse);

  /// Makes what is fetched, which is first so that it can be kept.
  void begin(bool keeps, bool sends_q);
  void make_keys();
  void fill_keys() { buffer_->fill(writer_, {keys_[0].own, keys_[1].own}); }
  /// The cast of each stage: queries and keys.
  void add_casts(const std::vector<std::pair<TensorRef, TensorRef>>& with_queries, const char* label, bool with_keys);
  /// The cast that takes results of a stage back.
  Cast return_cast(size_t stage, const std::vector<std::pair<TensorRef, TensorRef>>& tensors, const char* label) const;
  /// Plays the stages: `arrive` once rows of a stage are there, `attend` with the number of each call, `send_back`
  /// after each stage.
  template <class Arrive, class Attend, class SendBack>
  void play_stages(const Arrive& arrive, const Attend& attend, const SendBack& send_back);
  AttendOp attend_to(const MovementCall& call, size_t mask) const;
  FloatRef sink_of(Place place, int group) const {
    const int num_heads = given_.q.heads;
    return call_.seqlen_sink > 0 ? FloatRef{place, group * (num_heads / groups_), num_heads} : FloatRef{};
  }
  void make_maxima();
  /// Where parts for this rank's rows land, on streams.
  void find_landing_rows();
  RowListsRef add_lists() {
    return landing_.rows > 0 ? writer_.add_lists(std::move(landing_.of_shard_row)) : RowListsRef{};
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
  LandingRows landing_;           // of results of queries
  std::vector<int> casts_;        // by stage; -1: nothing comes
  std::vector<FloatRef> maxima_;  // by group: a row for the own queries, and one for each call of others'
  std::vector<int64_t> num_maxima_;
};

Operand MovementWriter::operand(const TensorRef& given, bool fetched, bool lent, std::vector<RowSumOp>& copies) {
  const int64_t rows = groups_ * given.rows;
  if (!on_stream() || !fetched) {
    const TensorRef own = groups_ == 1 ? given : grouped(given, work(given.dtype, rows, given), copies);
    return {own, own};
  }
  const TensorRef sent = arena(given.dtype, rows, given);
  if (groups_ > 1) return {grouped(given, sent, copies), sent};
  if (lent) copies.push_back({given, {}, sent});
  return {given, sent};
}

TensorRef MovementWriter::grouped(const TensorRef& given, const TensorRef& result, std::vector<RowSumOp>& copies) {
  for (int group = 0; group < groups_; ++group) {
    copies.push_back({of_group(given, group), {}, result.slice({group * given.rows, (group + 1) * given.rows})});
  }
  return result;
}

TensorRef MovementWriter::grouped_lse() {
  if (groups_ == 1) return given_.lse;
  const TensorRef result = floats_by_groups();
  const int heads = given_.lse.heads / groups_;
  std::vector<FloatCopyOp> copies;
  for (int group = 0; group < groups_; ++group) {
    copies.push_back({{Place::kLse, group * heads, given_.lse.heads},
                      floats_of_rows(result.slice(rows_of_group(group))),
                      given_.lse.rows,
                      heads});
  }
  writer_.copy_floats(std::move(copies));
  return result;
}

Operand MovementWriter::float_operand(const TensorRef& own) {
  if (!on_stream() || !moves_q_ || own.place == Place::kArena) return {own, own};
  return {own, arena_floats(groups_ * given_.q.rows)};
}

void MovementWriter::send_floats(const Operand& floats) {
  if (floats.own == floats.sent || !lends_q_) return;
  std::vector<FloatCopyOp> copies;
  append_float_copies(copies, floats.own, floats.sent);
  writer_.copy_floats(std::move(copies));
}

void MovementWriter::write_groups(const TensorRef& sum, const TensorRef& others, const RowListsRef& lists,
                                  const TensorRef& given) {
  if (sum == given && others.rows == 0) return;
  std::vector<RowSumOp> sums;
  for (int group = 0; group < groups_; ++group) {
    const Range rows = rows_of_group(group);
    RowSumOp of_group_sum{sum.slice(rows), {}, of_group(given, group)};
    if (lists.lists >= 0) {
      of_group_sum.addend = others;
      of_group_sum.addend_rows = {lists.lists, rows.begin};
    } else if (others.rows > 0) {
      of_group_sum.addend = others.slice(rows);
    }
    sums.push_back(of_group_sum);
  }
  writer_.sum_rows(std::move(sums));
}

void MovementWriter::write_lse(const TensorRef& lse) {
  if (groups_ == 1) return;
  const int heads = given_.lse.heads / groups_;
  std::vector<FloatCopyOp> copies;
  for (int group = 0; group < groups_; ++group) {
    copies.push_back({floats_of_rows(lse.slice(rows_of_group(group))),
                      {Place::kLse, group * heads, given_.lse.heads},
                      given_.lse.rows,
                      heads});
  }
  writer_.copy_floats(std::move(copies));
}

void MovementWriter::begin(bool keeps, bool sends_q) {
  const HeadConfig& h = plan_.config.heads;
  fetched_q_ = writer_.arena(h.dtype, fetched_rows(), h.num_heads_q / groups_, h.head_dim);
  std::optional<int64_t> key_rows;
  if (on_stream()) {
    key_rows = 0;
    for (size_t r = 0; r < pass_.size(); ++r) {
      const MovementRank& of = pass_[r];
      const KeyLayout layout(of.kv_segments, static_cast<int>(r), of.kv_rows, of.remote_kv_rows);
      if (keeps || !layout.shard_could_serve()) key_rows = std::max(*key_rows, of.kv_rows);
    }
  }
  buffer_.emplace(writer_, layout_, h.dtype, key_heads_, keeps, key_rows);
  if (keeps) writer_.keep_regions();
  std::vector<RowSumOp> copies;
  q_ = operand(given_.q, moves_q_ && sends_q, lends_q_, copies);
  writer_.sum_rows(std::move(copies));
}

void MovementWriter::make_keys() {
  std::vector<RowSumOp> copies;
  keys_[0] = operand(given_.keys.k, moves_kv_, lends_kv_, copies);
  keys_[1] = operand(given_.keys.v, moves_kv_, lends_kv_, copies);
  writer_.sum_rows(std::move(copies));
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
      cast.items.push_back({exchange, keys_[0].sent, buffer_->landing().k, "kv stage"});
      cast.items.push_back({exchange, keys_[1].sent, buffer_->landing().v, "kv stage"});
    }
    casts_.push_back(cast.items.empty() ? -1 : writer_.add_cast(std::move(cast)));
  }
  if (!on_stream()) return;
  for (const int cast : casts_) {
    if (cast >= 0) writer_.cast(cast);
  }
}

Cast MovementWriter::return_cast(size_t stage, const std::vector<std::pair<TensorRef, TensorRef>>& tensors,
                                 const char* label) const {
  const auto exchange = on_stream() ? shared(landing_.casts[stage]) : borrowed(rank_.stages[stage].q);
  Cast cast{{}, true, static_cast<int>(stage), !on_stream()};
  for (const auto& [source, target] : tensors) cast.items.push_back({exchange, source, target, label});
  return cast;
}

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

AttendOp MovementWriter::attend_to(const MovementCall& call, size_t mask) const {
  AttendOp op;
  op.mask = static_cast<int>(mask);
  op.q = (call.fetched ? fetched_q_ : q_.own).slice(call.rows);
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

void MovementWriter::find_landing_rows() {
  if (on_stream()) landing_ = landing_rows(pass_, self_, &MovementStage::q, groups_ * given_.q.rows);
}

Program MovementWriter::forward() {
  begin(call_.keeps, true);
  make_keys();
  if (!on_stream()) fill_keys();
  find_landing_rows();
  const int64_t own_rows = groups_ * given_.q.rows;
  const PartialRef own{sum_of(given_.out, call_.out), sum_of(given_.lse, DType::kFloat32)};
  const PartialRef fetched{sendable(DType::kFloat32, fetched_rows(), given_.out),
                           on_stream() && sends_columns_as_they_are()
                               ? arena_floats(fetched_rows())
                               : work(DType::kFloat32, rank_.remote_q_rows, given_.lse)};
  PartialRef sent = fetched, others;  // others: what other ranks compute for rows of this one
  if (on_stream()) {
    if (!sends_columns_as_they_are()) sent.lse = arena_floats(fetched_rows());
    others = {arena(DType::kFloat32, landing_.most_rows, given_.out), arena_floats(landing_.most_rows)};
  } else {
    const int64_t rows = lends_q_ ? own_rows : 0;
    others = {work(DType::kFloat32, rows, given_.out), work(DType::kFloat32, rows, given_.lse)};
  }
  if (!on_stream() && lends_q_) {
    writer_.zero(others.out);
    writer_.copy_floats(
        {{{}, floats_of_rows(others.lse), own_rows, others.lse.heads, -std::numeric_limits<float>::infinity()}});
  }
  make_maxima();
  std::vector<int64_t> next_maximum(maxima_.size(), 1);
  add_casts({{q_.sent, fetched_q_}}, "q stage", true);
  if (on_stream()) fill_keys();
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
  play_stages([](size_t) {}, attend,
              [&](size_t stage) {
                if (!steps_[stage].moves_q) return;
                if (sent.lse != fetched.lse) {
                  std::vector<FloatCopyOp> copies;
                  append_float_copies(copies, fetched.lse.slice(fetched_in(stage)), sent.lse.slice(fetched_in(stage)));
                  writer_.copy_floats(std::move(copies));
                }
                Cast cast = return_cast(stage, {{sent.out, others.out}, {sent.lse, others.lse}}, "out stage");
                cast.by_lse = cast.adds;
                writer_.cast(writer_.add_cast(std::move(cast)));
              });
  writer_.wait_for_all();
  writer_.begin_step(kAtEnd);
  const RowListsRef lists = add_lists();
  for (int group = 0; group < groups_; ++group) {
    const Range rows = rows_of_group(group);
    const FloatRef& from = maxima_[static_cast<size_t>(group)];
    const int heads = given_.q.heads / groups_;
    writer_.append(
        {LargestOp{from, {Place::kMaxLogits, group * heads, heads}, num_maxima_[static_cast<size_t>(group)], heads}});
    MergeOp merge{own.out.slice(rows), own.lse.slice(rows), {}, {}, sink_of(Place::kSink, group)};
    if (lends_q_ && on_stream()) {
      merge.other_out = others.out;
      merge.other_lse = others.lse;
      merge.other_lse.heads = heads;
      merge.other_rows = {lists.lists, rows.begin};
    } else if (lends_q_) {
      merge.other_out = others.out.slice(rows);
      merge.other_lse = others.lse.slice(rows);
    }
    if (lends_q_ || call_.seqlen_sink > 0) writer_.append(merge);
  }
  write_groups(own.out, {}, {}, given_.out);
  write_lse(own.lse);
  return writer_.take();
}

Program MovementWriter::backward(bool kept) {
  const DType travel = plan_.config.reduce_dtype;
  const int64_t own_rows = groups_ * given_.q.rows;
  begin(kept, !kept);
  if (!kept) make_keys();
  if (!kept && !on_stream()) fill_keys();
  find_landing_rows();
  std::vector<RowSumOp> copies;
  const Operand dout = operand(given_.dout, moves_q_, lends_q_, copies);
  writer_.sum_rows(std::move(copies));
  const Operand lse = float_operand(grouped_lse()), delta = float_operand(floats_by_groups());
  for (int group = 0; group < groups_; ++group) {
    writer_.append(
        DeltaOp{of_group(given_.out, group), of_group(given_.dout, group), delta.own.slice(rows_of_group(group))});
  }
  send_floats(lse);
  send_floats(delta);
  const TensorRef fetched_dout = arena(dout.own.dtype, fetched_rows(), given_.dout);
  const TensorRef landed_lse = arena_floats(fetched_rows()), landed_delta = arena_floats(fetched_rows());
  const TensorRef fetched_lse = calls_floats(landed_lse), fetched_delta = calls_floats(landed_delta);
  std::vector<std::pair<TensorRef, TensorRef>> with_queries = {
      {dout.sent, fetched_dout}, {lse.sent, landed_lse}, {delta.sent, landed_delta}};
  if (!kept) with_queries.emplace_back(q_.sent, fetched_q_);
  add_casts(with_queries, "dout stage", !kept);
  if (!kept && on_stream()) fill_keys();

  const TensorRef own_dq = sum_of(given_.dq, call_.dq);
  TensorRef fetched_dq, sent_dq, dq_of_others;
  if (travel == DType::kFloat32) {
    fetched_dq = sent_dq = sendable(travel, fetched_rows(), given_.dq);
  } else {
    fetched_dq = work(DType::kFloat32, rank_.remote_q_rows, given_.dq);
    sent_dq = sendable(travel, fetched_rows(), given_.dq);
  }
  if (on_stream()) {
    dq_of_others = arena(travel, landing_.most_rows, given_.dq);
  } else {
    dq_of_others = work(travel, lends_q_ ? own_rows : 0, given_.dq);
    if (lends_q_) writer_.zero(dq_of_others);
  }
  const auto key_gradients = [&]() -> KeyGradients {
    const int64_t shard_rows = groups_ * given_.keys.k.rows;
    if (!on_stream()) {
      return {writer_, layout_, key_heads_, travel, moves_kv_, lends_kv_ ? shard_rows : 0};
    }
    return {writer_,
            layout_,
            key_heads_,
            travel,
            moves_kv_,
            landing_rows(pass_, self_, &MovementStage::kv, shard_rows),
            arena_rows([](const MovementRank& rank) { return rank.kv_rows; })};
  };
  KeyGradients grads = key_gradients();

  const size_t first_mask = movement_calls(plan_, plan_.movement.forward[self_]).size();
  const auto attend = [&](const MovementCall& call, size_t number) {
    AttendOp op = attend_to(call, first_mask + number);
    const auto rows_of = [&](const TensorRef& own, const TensorRef& fetched) {
      return (call.fetched ? fetched : own).slice(call.rows);
    };
    op.backward = true;
    op.lse = floats_of_rows(rows_of(lse.own, fetched_lse));
    op.delta = floats_of_rows(rows_of(delta.own, fetched_delta));
    op.dout = rows_of(dout.own, fetched_dout);
    op.dq = rows_of(own_dq, fetched_dq);
    op.dk = grads.computed().k;
    op.dv = grads.computed().v;
    op.accumulate_kv = true;
    writer_.attend(op);
  };
  const auto arrive = [&](size_t stage) {
    if (fetched_lse == landed_lse) return;
    std::vector<FloatCopyOp> columns;
    append_float_copies(columns, landed_lse.slice(fetched_in(stage)), fetched_lse.slice(fetched_in(stage)));
    append_float_copies(columns, landed_delta.slice(fetched_in(stage)), fetched_delta.slice(fetched_in(stage)));
    writer_.copy_floats(std::move(columns));
  };
  play_stages(arrive, attend, [&](size_t stage) {
    if (steps_[stage].moves_q) {
      std::vector<RowSumOp> rounded;
      const Range rows = fetched_in(stage);
      if (sent_dq != fetched_dq) rounded.push_back({fetched_dq.slice(rows), {}, sent_dq.slice(rows)});
      writer_.sum_rows(std::move(rounded));
      writer_.cast(writer_.add_cast(return_cast(stage, {{sent_dq, dq_of_others}}, "dq stage")));
    }
    for (const size_t complete : steps_[stage].complete_kv) {
      grads.send_back(writer_, rank_.stages[complete].kv, complete);
    }
  });
  writer_.begin_step(kAtEnd);
  for (int group = 0; group < groups_ && call_.seqlen_sink > 0 && call_.wants_dsink; ++group) {
    const Range rows = rows_of_group(group);
    writer_.append(SinkGradOp{lse.own.slice(rows), delta.own.slice(rows), sink_of(Place::kSink, group),
                              sink_of(Place::kDsink, group)});
  }
  writer_.wait_for_all();
  const RowListsRef lists = add_lists();
  write_groups(own_dq, on_stream() && !lends_q_ ? TensorRef{} : dq_of_others, lists, given_.dq);
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
