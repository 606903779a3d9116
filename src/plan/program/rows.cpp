// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rows of one row group alone, and gathered, while the own block computes; what all ways of moving blocks share.
#include "plan/program/rows.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram {

namespace {

AttendOp step_call(const RowCall& rows, size_t step, const PairRef& kv) {
  AttendOp call = rows.call;
  call.mask += static_cast<int>(step);
  call.step += static_cast<int>(step);
  call.k = kv.k;
  call.v = kv.v;
  call.accumulate = step > 0;
  return call;
}

size_t last_step_with_work(const GridRank& rank) {
  size_t last = 0;
  for (size_t s = 0; s < rank.steps().size(); ++s) last = rank.computes(s) ? s : last;
  return last;
}

/// Rows of the sequence of each row group, in the global order of its blocks.
std::vector<std::vector<Range>> rows_of_groups(const GridRank& rank) {
  const Dispatch& dispatch = rank.plan.k_dispatch;
  std::vector<std::vector<Range>> groups(static_cast<size_t>(rank.grid().row_groups));
  for (int64_t c = 0; c < dispatch.num_chunks(); ++c) {
    const int group = dispatch.rank_of_chunk[static_cast<size_t>(c)] / rank.grid().ulysses_degree;
    groups[static_cast<size_t>(group)].push_back({c * dispatch.chunk_size, (c + 1) * dispatch.chunk_size});
  }
  return groups;
}

/// Blocks to the whole sequence: from rows of the own block to one block for each other group.
Exchange gather_exchange(const GridRank& rank) {
  const std::vector<std::vector<Range>> groups = rows_of_groups(rank);
  Exchange exchange;
  for (int group = 0; group < rank.grid().row_groups; ++group) {
    if (group == rank.group()) continue;
    int64_t row = 0;
    for (const Range& rows : groups[static_cast<size_t>(rank.group())]) {
      exchange.sends.push_back({rank.rank_of(group), {row, row + rows.size()}, rows.begin});
      row += rows.size();
    }
    row = 0;
    for (const Range& rows : groups[static_cast<size_t>(group)]) {
      exchange.recvs.push_back({rank.rank_of(group), rows, row});
      row += rows.size();
    }
  }
  return exchange;
}

/// The other row groups of `self` are counted without it.
int64_t slot_of(int group, int self) { return group < self ? group : group - 1; }

/// Read backwards: what each group made of the own rows arrives in a block of its own.
Exchange scatter_exchange(const GridRank& rank, const Exchange& gather) {
  Exchange exchange{gather.recvs, gather.sends};
  const int ulysses_degree = rank.grid().ulysses_degree;
  for (RowCopy& copy : exchange.sends) {
    copy.peer_row += slot_of(rank.group(), copy.peer / ulysses_degree) * rank.block_rows();
  }
  for (RowCopy& copy : exchange.recvs) {
    const int64_t first = slot_of(copy.peer / ulysses_degree, rank.group()) * rank.block_rows();
    copy.rows = {copy.rows.begin + first, copy.rows.end + first};
  }
  return exchange;
}

struct Gathered {
  PairRef own, all;
  Exchange exchange;
  int cast = 0;
};

Gathered write_gather(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const DType dtype = rank.plan.config.heads.dtype;
  Gathered gathered;
  gathered.own = sendable(writer, {rows.call.k, rows.call.v}, dtype);
  gathered.all = arena_pair(writer, dtype, rank.plan.k_dispatch.seqlen(), gathered.own);
  gathered.exchange = gather_exchange(rank);
  gathered.cast =
      add_pair_cast(writer, shared(gathered.exchange), gathered.own, gathered.all, "gather kv", {{}, false, 1});
  writer.cast(gathered.cast);
  return gathered;
}

void write_gather_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const bool has_others = rank.computes(1);
  const Gathered gathered = write_gather(writer, rank, rows);
  AttendOp call = step_call(rows, 0, gathered.own);
  if (has_others) {
    call.out = sum_for(writer, rows.call.out, rows.result_dtype);
    call.sink = {};
  }
  writer.attend(call);
  writer.wait(gathered.cast);
  if (!has_others) return;
  const TensorRef out = call.out;
  call = step_call(rows, 1, gathered.all);
  call.out = out;
  writer.attend(call);
  if (out != rows.call.out) writer.copy_rows(out, rows.call.out);
}

/// Adds up the contributions of all row groups to the own rows, in their order.
void sum_groups(ProgramWriter& writer, const GridRank& rank, const TensorRef& own, const TensorRef& come,
                const TensorRef& result) {
  std::vector<TensorRef> terms;
  for (int group = 0; group < rank.grid().row_groups; ++group) {
    const int64_t first = slot_of(group, rank.group()) * rank.block_rows();
    terms.push_back(group == rank.group() ? own : come.slice({first, first + rank.block_rows()}));
  }
  writer.sum_in_order(terms, result);
}

void write_gather_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const DType move = rank.plan.config.reduce_dtype;
  const int64_t all_rows = rank.plan.k_dispatch.seqlen();
  const Gathered gathered = write_gather(writer, rank, rows);
  const PairRef own = work_pair(writer, DType::kFloat32, rank.block_rows(), gathered.own);
  const PairRef sent = arena_pair(writer, move, all_rows, gathered.own);
  const PairRef come = arena_pair(writer, move, rank.block_rows() * (rank.grid().row_groups - 1), gathered.own);
  const PairRef made = rank.kernels_write(move) ? sent : work_pair(writer, DType::kFloat32, all_rows, gathered.own);

  const TensorRef dq = sum_for(writer, rows.call.dq, rows.result_dtype);
  write_step_backward(writer, rank, rows, 0, gathered.own, dq, own);
  writer.wait(gathered.cast);
  write_step_backward(writer, rank, rows, 1, gathered.all, dq, made);
  if (made.k != sent.k) writer.sum_rows({{made.k, {}, sent.k}, {made.v, {}, sent.v}});
  const int scatter = add_pair_cast(writer, shared(scatter_exchange(rank, gathered.exchange)), sent, come,
                                    "scatter dkv", {{}, true, 1});
  writer.cast(scatter);
  if (dq != rows.call.dq) writer.copy_rows(dq, rows.call.dq);
  writer.wait(scatter);
  sum_groups(writer, rank, own.k, come.k, rows.call.dk);
  sum_groups(writer, rank, own.v, come.v, rows.call.dv);
}

void write_local_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  if (rank.kernels_write(rows.dk_dtype) && rank.kernels_write(rows.dv_dtype)) {
    writer.attend(rows.call);
    return;
  }
  const PairRef made = work_pair(writer, DType::kFloat32, rank.block_rows(), {rows.call.k, rows.call.v});
  AttendOp call = rows.call;
  call.dk = made.k;
  call.dv = made.v;
  writer.attend(call);
  writer.sum_rows({{made.k, {}, rows.call.dk}, {made.v, {}, rows.call.dv}});
}

}  // namespace

void append_copies(std::vector<RowSumOp>& sums, const PairRef& source, const PairRef& result) {
  sums.push_back({source.k, {}, result.k});
  sums.push_back({source.v, {}, result.v});
}

void zero(ProgramWriter& writer, const PairRef& pair) {
  writer.zero(pair.k);
  writer.zero(pair.v);
}

void write_steps_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows,
                         const std::function<void(size_t)>& advance, const std::function<PairRef(size_t)>& kv_of) {
  const size_t last = last_step_with_work(rank);
  const TensorRef out = last > 0 ? sum_for(writer, rows.call.out, rows.result_dtype) : rows.call.out;
  for (size_t s = 0; s < rank.steps().size(); ++s) {
    writer.begin_step(s);
    advance(s);
    if (!rank.computes(s)) continue;
    AttendOp call = step_call(rows, s, kv_of(s));
    call.out = out;
    if (s != last) call.sink = {};
    writer.attend(call);
  }
  if (out != rows.call.out) writer.copy_rows(out, rows.call.out);
}

void write_step_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows, size_t step,
                         const PairRef& kv, const TensorRef& dq, const PairRef& made) {
  if (!rank.computes(step)) {
    zero(writer, made);
    return;
  }
  AttendOp call = step_call(rows, step, kv);
  call.dq = dq;
  call.dk = made.k;
  call.dv = made.v;
  if (step > 0) call.sink = call.dsink = {};  // dsink depends on no keys: the first call gives all of it
  writer.attend(call);
}

PairRef arena_pair(ProgramWriter& writer, DType dtype, int64_t rows, const PairRef& like) {
  const TensorRef k = writer.arena(dtype, rows, like.k.heads, like.k.dim);
  return {k, writer.arena(dtype, rows, like.v.heads, like.v.dim)};
}

PairRef work_pair(ProgramWriter& writer, DType dtype, int64_t rows, const PairRef& like) {
  const TensorRef k = writer.work(dtype, rows, like.k.heads, like.k.dim);
  return {k, writer.work(dtype, rows, like.v.heads, like.v.dim)};
}

PairRef sendable(ProgramWriter& writer, const PairRef& own, DType dtype) {
  if (writer.target().sends_from_anywhere) return own;
  if (own.k.memory == Memory::kArena && own.v.memory == Memory::kArena) return own;
  const PairRef copy = arena_pair(writer, dtype, own.k.rows, own);
  writer.sum_rows({{own.k, {}, copy.k}, {own.v, {}, copy.v}});
  return copy;
}

int add_pair_cast(ProgramWriter& writer, const std::shared_ptr<const Exchange>& exchange, const PairRef& source,
                  const PairRef& target, const char* label, GroupCast cast) {
  cast.items = {{exchange, source.k, target.k, label}, {exchange, source.v, target.v, label}};
  return writer.add_cast(std::move(cast));
}

TensorRef sum_for(ProgramWriter& writer, const TensorRef& result, DType result_dtype) {
  if (result_dtype == DType::kFloat32) return result;
  return writer.work(DType::kFloat32, result.rows, result.heads, result.dim);
}

void write_rows_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  switch (rank.grid().row_move) {
    case RowMove::kNone: writer.attend(rows.call); break;
    case RowMove::kRing: write_ring_forward(writer, rank, rows); break;
    case RowMove::kGather: write_gather_forward(writer, rank, rows); break;
    case RowMove::kSubRings: write_sub_rings_forward(writer, rank, rows); break;
  }
}

void write_rows_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  switch (rank.grid().row_move) {
    case RowMove::kNone: write_local_backward(writer, rank, rows); break;
    case RowMove::kRing: write_ring_backward(writer, rank, rows); break;
    case RowMove::kGather: write_gather_backward(writer, rank, rows); break;
    case RowMove::kSubRings: write_sub_rings_backward(writer, rank, rows); break;
  }
}

}  // namespace tangram
