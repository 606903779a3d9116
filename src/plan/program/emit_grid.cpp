// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Both passes of a plan with a grid: heads are exchanged chunk by chunk, rows attend in between.
//
// NOTE [head chunks]: while chunk c computes, the inputs of chunk c + 1 and the results of chunk c - 1 move. This is
// HCMS (arXiv 2607.01817); with one chunk, Ulysses. Every head is computed by one call over the same rows and keys
// however heads are cut, so results do not depend on the chunks.
#include <algorithm>
#include <limits>
#include <optional>

#include "core/require.hpp"
#include "plan/program/emitters.hpp"
#include "plan/program/heads.hpp"
#include "plan/program/key_rows.hpp"
#include "plan/program/rows.hpp"

namespace tangram {

namespace {

/// One chunk of heads on its way through a pass.
struct Chunk {
  HeadRange q_heads, kv_heads;
  int mask = 0;
  // All rows of the group, in the arena: what a forward pass may leave to its backward pass.
  TensorRef q, k, v, out, lse_memory;
  FloatRef lse;
  FloatRef row_sinks;  // [rows, sinks, heads], also kept
  TensorRef dout, dq, dk, dv;
  TensorRef landed_lse;  // of inputs
  std::vector<TensorRef> landed_sinks;
  TensorRef back_out, back_lse, back_dq, back_dk, back_dv;  // of results
  std::vector<TensorRef> back_dsinks;
  FloatRef dsink;
  int cast_in = -1, cast_back = -1;
};

/// One value a row and head of `[rows, sinks, heads]`: those of sink `sink`.
FloatRef one_sink(const FloatRef& all, int64_t num_sinks, int64_t sink) {
  return {all.memory, all.offset + sink * (all.stride / num_sinks), all.stride, all.region};
}

class PassWriter {
 public:
  PassWriter(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);

  Program forward();
  Program backward(bool kept);

 private:
  const HeadConfig& heads() const { return rank_.plan.config.heads; }
  bool by_heads() const { return rank_.grid().ulysses_degree > 1; }
  /// Sinks of single rows, which move with heads.
  int64_t num_row_sinks() const { return call_.sink_layout == SinkLayout::kSsh ? call_.seqlen_sink : 0; }
  bool wants_dsink() const { return call_.seqlen_sink > 0 && call_.wants_dsink; }
  void make_chunks();
  AttendOp arguments(bool backward) const;
  AttendOp attend_to(const Chunk& chunk, size_t number) const;
  /// Copies the sink of this rank's heads together, unless it has come with them.
  FloatRef sink_of(const Chunk& chunk);
  void add_row_sinks(Chunk& chunk, std::vector<GroupCastTensor>& items);
  void unpack_row_sinks(const Chunk& chunk);
  void add_dsink(Chunk& chunk, std::vector<GroupCastTensor>& items);
  void unpack_dsink(const Chunk& chunk);
  size_t chunks_ahead() const {
    const int ahead = writer_.target().chunks_ahead;
    return ahead == 0 ? chunks_.size() : static_cast<size_t>(ahead);
  }
  int first_q_head(const Chunk& chunk) const { return q_moves_->first_head() + chunk.q_heads.first; }

  /// Adds the group-cast that exchanges the heads of a chunk.
  int add_exchange(std::vector<GroupCastTensor> items, bool results, size_t number) {
    return writer_.add_cast(
        {.items = std::move(items), .results = results, .step = static_cast<int>(number), .exchanges_heads = true});
  }
  void send_forward(Chunk& chunk, size_t number);
  void send_backward(Chunk& chunk, size_t number, bool kept);
  /// Writes `compute(chunk, number)` for each chunk, and sends home what it returns; `send(chunk, number)` as many
  /// chunks ahead of that as the target wants.
  template <class Send, class Compute>
  void compute_chunks(const Send& send, const Compute& compute);
  void compute_backward(Chunk& chunk, size_t number);

  GridRank rank_;
  CallShape call_;
  DType dk_dtype_, dv_dtype_;
  std::optional<HeadMoves> q_moves_, kv_moves_;
  ProgramWriter writer_;
  std::vector<Chunk> chunks_;
  const PassArguments given_;
  const FloatRef lse_;
};

PassWriter::PassWriter(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target)
    : rank_{plan, rank},
      call_(call),
      dk_dtype_(call.dk),
      dv_dtype_(call.dv),
      writer_(target),
      given_(plan, call),
      lse_{Memory::kLse, 0, plan.config.heads.num_heads_q} {
  if (!by_heads()) return;
  const HeadConfig& h = heads();
  q_moves_.emplace(rank_, plan.q_dispatch, h.num_heads_q, "q to heads", "results to rows");
  kv_moves_.emplace(rank_, plan.k_dispatch, h.num_heads_kv, "kv to heads", "dkv to rows");
  if (kv_moves_->shares_heads()) dk_dtype_ = dv_dtype_ = plan.config.reduce_dtype;
  make_chunks();
}

void PassWriter::make_chunks() {
  const GridPlan& grid = rank_.grid();
  const HeadConfig& h = heads();
  const int per_kv = h.num_heads_q / grid.ulysses_degree / std::max(1, h.num_heads_kv / grid.ulysses_degree);
  const int64_t q_rows = rank_.group_q_rows(), k_rows = rank_.block_rows();
  std::vector<int> kinds;
  int first = 0;
  for (const int count : grid.head_chunks) {
    auto kind = std::find(kinds.begin(), kinds.end(), count);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), count);
    Chunk& chunk = chunks_.emplace_back();
    chunk.q_heads = {first * per_kv, count * per_kv};
    chunk.kv_heads = {first, count};
    chunk.mask = static_cast<int>((kind - kinds.begin()) * std::ssize(rank_.steps()));
    first += count;
    // First of all, so that they lie in the same place in both passes.
    const int num_q = chunk.q_heads.count;
    chunk.q = writer_.arena(h.dtype, q_rows, num_q, h.head_dim);
    chunk.k = writer_.arena(h.dtype, k_rows, count, h.head_dim);
    chunk.v = writer_.arena(h.dtype, k_rows, count, h.head_dim_v);
    chunk.out = writer_.arena(call_.out, q_rows, num_q, h.head_dim_v);
    chunk.lse_memory = writer_.arena(DType::kFloat32, q_rows, num_q, 1);
    chunk.lse = floats_of(chunk.lse_memory, num_q);
    if (num_row_sinks() == 0) continue;
    const int values = static_cast<int>(num_row_sinks()) * num_q;
    chunk.row_sinks = floats_of(writer_.arena(DType::kFloat32, q_rows, values, 1), values);
  }
  writer_.keep_regions();
}

AttendOp PassWriter::arguments(bool backward) const {
  AttendOp op;
  op.backward = backward;
  op.q = given_.q;
  op.k = given_.keys.k;
  op.v = given_.keys.v;
  op.out = given_.out;
  op.lse = lse_;
  if (call_.seqlen_sink > 0) op.sink = {Memory::kSink, 0, heads().num_heads_q};
  if (backward) {
    op.dout = given_.dout;
    op.dq = given_.dq;
    op.dk = given_.key_grads.k;
    op.dv = given_.key_grads.v;
    if (wants_dsink()) op.dsink = {Memory::kDsink, 0, heads().num_heads_q};
  } else {
    op.max_logits = {Memory::kMaxLogits, 0, heads().num_heads_q};
  }
  return op;
}

AttendOp PassWriter::attend_to(const Chunk& chunk, size_t number) const {
  AttendOp op;
  op.mask = chunk.mask;
  op.q = chunk.q;
  op.k = chunk.k;
  op.v = chunk.v;
  op.out = chunk.out;
  op.lse = chunk.lse;
  op.step = static_cast<int>(number);
  return op;
}

FloatRef PassWriter::sink_of(const Chunk& chunk) {
  if (call_.seqlen_sink == 0) return {};
  if (num_row_sinks() > 0) return chunk.row_sinks;
  const int count = chunk.q_heads.count;
  const FloatRef sink = writer_.float_work(call_.seqlen_sink, count);
  writer_.copy_floats({{{Memory::kSink, first_q_head(chunk), heads().num_heads_q}, sink, call_.seqlen_sink, count}});
  return sink;
}

void PassWriter::add_row_sinks(Chunk& chunk, std::vector<GroupCastTensor>& items) {
  const FloatRef given = {Memory::kSink, 0, num_row_sinks() * heads().num_heads_q};
  chunk.landed_sinks.resize(static_cast<size_t>(num_row_sinks()));
  for (int64_t s = 0; s < num_row_sinks(); ++s) {
    TensorRef& landed = chunk.landed_sinks[static_cast<size_t>(s)];
    items.push_back(q_moves_->pack_floats(writer_, one_sink(given, num_row_sinks(), s), chunk.q_heads, landed));
  }
}

void PassWriter::unpack_row_sinks(const Chunk& chunk) {
  const FloatRef given = {Memory::kSink, 0, num_row_sinks() * heads().num_heads_q};
  for (int64_t s = 0; s < num_row_sinks(); ++s) {
    q_moves_->unpack_floats(writer_, one_sink(given, num_row_sinks(), s), chunk.q_heads,
                            chunk.landed_sinks[static_cast<size_t>(s)], one_sink(chunk.row_sinks, num_row_sinks(), s));
  }
}

void PassWriter::add_dsink(Chunk& chunk, std::vector<GroupCastTensor>& items) {
  if (!wants_dsink()) return;
  chunk.back_dsinks.resize(static_cast<size_t>(num_row_sinks()));
  for (int64_t s = 0; s < num_row_sinks(); ++s) {
    TensorRef& landed = chunk.back_dsinks[static_cast<size_t>(s)];
    items.push_back(
        q_moves_->floats_back(writer_, one_sink(chunk.dsink, num_row_sinks(), s), chunk.q_heads.count, landed));
  }
}

void PassWriter::unpack_dsink(const Chunk& chunk) {
  if (!wants_dsink()) return;
  const FloatRef wanted = {Memory::kDsink, 0, num_row_sinks() * heads().num_heads_q};
  for (int64_t s = 0; s < num_row_sinks(); ++s) {
    q_moves_->unpack_floats_back(writer_, one_sink(chunk.dsink, num_row_sinks(), s),
                                 chunk.back_dsinks[static_cast<size_t>(s)], chunk.q_heads,
                                 one_sink(wanted, num_row_sinks(), s));
  }
}

template <class Send, class Compute>
void PassWriter::compute_chunks(const Send& send, const Compute& compute) {
  size_t num_sent = 0;
  const auto send_until = [&](size_t count) {
    for (; num_sent < std::min(count, chunks_.size()); ++num_sent) send(chunks_[num_sent], num_sent);
  };
  const size_t ahead = chunks_ahead();
  send_until(ahead);
  for (size_t c = 0; c < chunks_.size(); ++c) {
    Chunk& chunk = chunks_[c];
    writer_.wait(chunk.cast_in);
    send_until(c + 1 + ahead);
    writer_.begin_step(c);
    chunk.cast_back = add_exchange(compute(chunk, c), true, c);
    writer_.cast(chunk.cast_back);
  }
}

void PassWriter::send_forward(Chunk& chunk, size_t number) {
  writer_.begin_step(number);
  std::vector<RowSumOp> copies;
  std::vector<GroupCastTensor> items = {q_moves_->pack(writer_, given_.q, chunk.q_heads, chunk.q, copies),
                                        kv_moves_->pack(writer_, given_.keys.k, chunk.kv_heads, chunk.k, copies),
                                        kv_moves_->pack(writer_, given_.keys.v, chunk.kv_heads, chunk.v, copies)};
  add_row_sinks(chunk, items);
  writer_.sum_rows(std::move(copies));
  chunk.cast_in = add_exchange(std::move(items), false, number);
  writer_.cast(chunk.cast_in);
}

Program PassWriter::forward() {
  if (!by_heads()) {
    write_rows_forward(writer_, rank_, {arguments(false), call_.out, dk_dtype_, dv_dtype_});
    return writer_.take();
  }
  const int num_heads = heads().num_heads_q;
  writer_.copy_floats(
      {{{}, {Memory::kMaxLogits, 0, num_heads}, 1, num_heads, -std::numeric_limits<float>::infinity()}});
  const auto send = [&](Chunk& chunk, size_t number) { send_forward(chunk, number); };
  compute_chunks(send, [&](Chunk& chunk, size_t c) {
    unpack_row_sinks(chunk);
    AttendOp op = attend_to(chunk, c);
    op.max_logits = {Memory::kMaxLogits, first_q_head(chunk), num_heads};
    op.sink = sink_of(chunk);
    write_rows_forward(writer_, rank_, {op, call_.out, dk_dtype_, dv_dtype_});
    return std::vector<GroupCastTensor>{q_moves_->back(writer_, chunk.out, chunk.back_out),
                                        q_moves_->floats_back(writer_, chunk.lse, chunk.q_heads.count, chunk.back_lse)};
  });
  for (const Chunk& chunk : chunks_) {
    writer_.wait(chunk.cast_back);
    std::vector<RowSumOp> copies;
    q_moves_->unpack(writer_, chunk.out, chunk.back_out, chunk.q_heads, given_.out, copies);
    writer_.sum_rows(std::move(copies));
    q_moves_->unpack_floats_back(writer_, chunk.lse, chunk.back_lse, chunk.q_heads, lse_);
  }
  return writer_.take();
}

void PassWriter::send_backward(Chunk& chunk, size_t number, bool kept) {
  writer_.begin_step(number);
  std::vector<GroupCastTensor> items;
  std::vector<RowSumOp> copies;
  if (!kept) {
    items = {q_moves_->pack(writer_, given_.q, chunk.q_heads, chunk.q, copies),
             kv_moves_->pack(writer_, given_.keys.k, chunk.kv_heads, chunk.k, copies),
             kv_moves_->pack(writer_, given_.keys.v, chunk.kv_heads, chunk.v, copies),
             q_moves_->pack(writer_, given_.out, chunk.q_heads, chunk.out, copies),
             q_moves_->pack_floats(writer_, lse_, chunk.q_heads, chunk.landed_lse)};
    add_row_sinks(chunk, items);
  }
  chunk.dout = writer_.arena(call_.dout, rank_.group_q_rows(), chunk.q_heads.count, heads().head_dim_v);
  items.push_back(q_moves_->pack(writer_, given_.dout, chunk.q_heads, chunk.dout, copies));
  writer_.sum_rows(std::move(copies));
  chunk.cast_in = add_exchange(std::move(items), false, number);
  writer_.cast(chunk.cast_in);
}

void PassWriter::compute_backward(Chunk& chunk, size_t number) {
  const HeadConfig& h = heads();
  chunk.dq = writer_.arena(call_.dq, chunk.q.rows, chunk.q.heads, h.head_dim);
  chunk.dk = writer_.arena(dk_dtype_, chunk.k.rows, chunk.k.heads, h.head_dim);
  chunk.dv = writer_.arena(dv_dtype_, chunk.v.rows, chunk.v.heads, h.head_dim_v);
  AttendOp op = attend_to(chunk, number);
  op.backward = true;
  op.dout = chunk.dout;
  op.dq = chunk.dq;
  op.dk = chunk.dk;
  op.dv = chunk.dv;
  if (wants_dsink()) op.sink = sink_of(chunk);  // which is all that it is for
  if (!wants_dsink()) {
    op.dsink = {};
  } else if (num_row_sinks() > 0) {
    const int values = static_cast<int>(num_row_sinks()) * chunk.q.heads;
    op.dsink = chunk.dsink = writer_.float_work(chunk.q.rows, values);
  } else {
    op.dsink = chunk.dsink = writer_.float_work(call_.seqlen_sink, chunk.q_heads.count);
  }
  write_rows_backward(writer_, rank_, {op, call_.dq, dk_dtype_, dv_dtype_});
  if (!wants_dsink() || num_row_sinks() > 0) return;
  writer_.copy_floats(
      {{chunk.dsink, {Memory::kDsink, first_q_head(chunk), h.num_heads_q}, call_.seqlen_sink, chunk.q_heads.count}});
}

Program PassWriter::backward(bool kept) {
  if (!by_heads()) {
    write_rows_backward(writer_, rank_, {arguments(true), call_.dq, dk_dtype_, dv_dtype_});
    return writer_.take();
  }
  const int num_heads = heads().num_heads_q;
  const int64_t shared_sinks = call_.seqlen_sink - num_row_sinks();
  if (wants_dsink()) writer_.copy_floats({{{}, {Memory::kDsink, 0, num_heads}, shared_sinks, num_heads}});
  const auto send = [&](Chunk& chunk, size_t number) { send_backward(chunk, number, kept); };
  compute_chunks(send, [&](Chunk& chunk, size_t c) {
    if (!kept) {
      q_moves_->unpack_floats(writer_, lse_, chunk.q_heads, chunk.landed_lse, chunk.lse);
      unpack_row_sinks(chunk);
    }
    compute_backward(chunk, c);
    std::vector<GroupCastTensor> items = {q_moves_->back(writer_, chunk.dq, chunk.back_dq),
                                          kv_moves_->back(writer_, chunk.dk, chunk.back_dk),
                                          kv_moves_->back(writer_, chunk.dv, chunk.back_dv)};
    add_dsink(chunk, items);
    return items;
  });
  for (const Chunk& chunk : chunks_) {
    writer_.wait(chunk.cast_back);
    std::vector<RowSumOp> copies;
    q_moves_->unpack(writer_, chunk.dq, chunk.back_dq, chunk.q_heads, given_.dq, copies);
    kv_moves_->unpack(writer_, chunk.dk, chunk.back_dk, chunk.kv_heads, given_.key_grads.k, copies);
    kv_moves_->unpack(writer_, chunk.dv, chunk.back_dv, chunk.kv_heads, given_.key_grads.v, copies);
    writer_.sum_rows(std::move(copies));
    unpack_dsink(chunk);
  }
  return writer_.take();
}

}  // namespace

std::vector<ProgramMask> grid_masks(const Plan& plan, int rank) {
  const GridRank of{plan, rank};
  const HeadConfig& heads = plan.config.heads;
  const int local_kv = std::max(1, heads.num_heads_kv / plan.ulysses_degree());
  const int per_kv = heads.num_heads_q / plan.ulysses_degree() / local_kv;
  std::vector<int> kinds;
  std::vector<ProgramMask> masks;
  for (const int count : plan.grid()->head_chunks) {
    if (std::find(kinds.begin(), kinds.end(), count) != kinds.end()) continue;
    kinds.push_back(count);
    for (size_t s = 0; s < of.steps().size(); ++s) {
      const GridStep& step = of.steps()[s];
      const int64_t keys = step.block < 0                                ? plan.mask.seqlen_k()
                           : plan.grid()->row_move == RowMove::kSubRings ? step.sub_rings.rows
                                                                         : of.block_rows();
      masks.push_back({{of.group_q_rows(), keys, count * per_kv, count, heads.head_dim, heads.head_dim_v, heads.dtype},
                       step.slices,
                       of.computes(s)});
    }
  }
  return masks;
}

Program grid_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target) {
  return PassWriter(plan, rank, call, target).forward();
}

Program grid_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept) {
  return PassWriter(plan, rank, call, target).backward(kept);
}

}  // namespace tangram
