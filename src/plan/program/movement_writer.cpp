// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/movement_writer.hpp"

namespace tangram {

void append_float_copies(std::vector<FloatCopyOp>& copies, const TensorRef& from, const TensorRef& to) {
  const int columns = std::min(from.heads, to.heads);
  copies.push_back({floats_of_rows(from), floats_of_rows(to), from.rows, columns});
  FloatRef rest = floats_of_rows(to);
  rest.offset += columns;
  copies.push_back({{}, rest, to.rows, to.heads - columns, 0});
}

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
  copy_lse(result, true);
  return result;
}

void MovementWriter::copy_lse(const TensorRef& by_groups, bool to_groups) {
  const int heads = given_.lse.heads / groups_;
  std::vector<FloatCopyOp> copies;
  for (int group = 0; group < groups_; ++group) {
    const FloatRef given{Memory::kLse, group * heads, given_.lse.heads};
    const FloatRef grouped = floats_of_rows(by_groups.slice(rows_of_group(group)));
    copies.push_back({to_groups ? given : grouped, to_groups ? grouped : given, given_.lse.rows, heads});
  }
  writer_.copy_floats(std::move(copies));
}

Operand MovementWriter::float_operand(const TensorRef& own) {
  if (!on_stream() || !moves_q_ || own.memory == Memory::kArena) return {own, own};
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
    GroupCast cast{{}, false, static_cast<int>(s)};
    for (const auto& [source, target] : with_queries) {
      if (steps_[s].moves_q) cast.items.push_back({borrowed(rank_.stages[s].q), source, target, label});
    }
    if (steps_[s].moves_kv && with_keys) {
      const auto exchange = borrowed(rank_.stages[s].kv);
      cast.items.push_back({exchange, keys_[0].sent, buffer_->recv_buffers().k, "kv stage"});
      cast.items.push_back({exchange, keys_[1].sent, buffer_->recv_buffers().v, "kv stage"});
    }
    casts_.push_back(cast.items.empty() ? -1 : writer_.add_cast(std::move(cast)));
  }
  if (!on_stream()) return;
  for (const int cast : casts_) {
    if (cast >= 0) writer_.cast(cast);
  }
}

GroupCast MovementWriter::return_cast(size_t stage, const std::vector<std::pair<TensorRef, TensorRef>>& tensors,
                                      const char* label) const {
  const auto exchange = on_stream() ? shared(recv_buffers_.casts[stage]) : borrowed(rank_.stages[stage].q);
  GroupCast cast{{}, true, static_cast<int>(stage), !on_stream()};
  for (const auto& [source, target] : tensors) cast.items.push_back({exchange, source, target, label});
  return cast;
}

AttendOp MovementWriter::attend_to(const MovementCall& call, size_t mask) const {
  AttendOp op;
  op.mask = static_cast<int>(mask);
  op.q = (call.fetched ? fetched_q_ : q_.own).slice(call.rows);
  op.k = buffer_->rows().k;
  op.v = buffer_->rows().v;
  op.accumulate = !call.fetched && call.stage > 0;
  op.step = static_cast<int>(call.stage);
  return op;
}

void MovementWriter::make_maxima() {
  num_maxima_.assign(static_cast<size_t>(groups_), 1);
  for (const MovementCall& call : calls_) num_maxima_[static_cast<size_t>(call.group)] += call.fetched ? 1 : 0;
  for (const int64_t count : num_maxima_) maxima_.push_back(writer_.float_work(count, given_.q.heads / groups_));
}

void MovementWriter::find_recv_buffer_rows() {
  if (on_stream()) recv_buffers_ = recv_buffer_rows(pass_, self_, &MovementStage::q, groups_ * given_.q.rows);
}

}  // namespace tangram
