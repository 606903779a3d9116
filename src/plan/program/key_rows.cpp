// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/key_rows.hpp"

#include <algorithm>
#include <utility>

namespace tangram {

namespace {

/// Calls `visit(rows, result rows)` for the pieces of flattened shard rows that are of one group of heads.
template <class Visit>
void for_each_group(const PairRef& shard, Range rows, int head_groups, const Visit& visit) {
  const int64_t of_group = shard.k.rows;
  for (int64_t begin = rows.begin; begin < rows.end;) {
    const auto group = static_cast<int>(begin / of_group);
    const int64_t first = group * of_group, end = std::min(rows.end, first + of_group);
    const PairRef heads{heads_of_group(shard.k, group, head_groups), heads_of_group(shard.v, group, head_groups)};
    visit(Range{begin, end}, slice(heads, {begin - first, end - first}));
    begin = end;
  }
}

}  // namespace

PassArguments::PassArguments(const Plan& plan, const CallShape& call) {
  const HeadConfig& h = plan.config.heads;
  const int64_t q_rows = plan.q_dispatch.rows_per_rank(), k_rows = plan.k_dispatch.rows_per_rank();
  q = argument(Memory::kQ, h.dtype, q_rows, h.num_heads_q, h.head_dim);
  out = argument(Memory::kOut, call.out, q_rows, h.num_heads_q, h.head_dim_v);
  dout = argument(Memory::kDout, call.dout, q_rows, h.num_heads_q, h.head_dim_v);
  dq = argument(Memory::kDq, call.dq, q_rows, h.num_heads_q, h.head_dim);
  lse = argument(Memory::kLse, DType::kFloat32, q_rows, h.num_heads_q, 1);
  keys = {argument(Memory::kK, h.dtype, k_rows, h.num_heads_kv, h.head_dim),
          argument(Memory::kV, h.dtype, k_rows, h.num_heads_kv, h.head_dim_v)};
  key_grads = {argument(Memory::kDk, call.dk, k_rows, h.num_heads_kv, h.head_dim),
               argument(Memory::kDv, call.dv, k_rows, h.num_heads_kv, h.head_dim_v)};
}

TensorRef heads_of_group(const TensorRef& tensor, int group, int groups) {
  TensorRef result = tensor;
  result.heads /= groups;
  result.first_head += group * result.heads;
  return result;
}

KeyBuffer::KeyBuffer(ProgramWriter& writer, const KeyLayout& layout, DType dtype, const PairRef& like, bool of_its_own,
                     std::optional<int64_t> arena_rows)
    : layout_(layout), shard_serves_(!of_its_own && layout.shard_could_serve()) {
  const int64_t needed = shard_serves_ ? 0 : layout.rows;
  recv_buffers_ = arena_pair(writer, dtype, arena_rows.value_or(needed), like);
  rows_ = slice(recv_buffers_, {0, needed});
}

void KeyBuffer::fill(ProgramWriter& writer, const PairRef& shard) {
  if (shard_serves_) {
    rows_ = slice(shard, layout_.own.empty() ? Range{0, 0} : layout_.own.front().shard);
    return;
  }
  std::vector<RowSumOp> copies;
  for (const auto& own : layout_.own) append_copies(copies, slice(shard, own.shard), slice(rows_, own.buffer));
  writer.sum_rows(std::move(copies));
}

KeyGradients::KeyGradients(ProgramWriter& writer, const KeyLayout& layout, const PairRef& like, DType move, bool moves,
                           int64_t owned_rows)
    : layout_(layout), has_owned_(moves && owned_rows > 0) {
  computed_ = sent_ = work_pair(writer, DType::kFloat32, layout.rows, like);
  zero(writer, computed_);
  if (!moves) return;
  owned_ = work_pair(writer, move, owned_rows, like);
  if (owned_rows > 0) zero(writer, owned_);
  if (move != DType::kFloat32) sent_ = work_pair(writer, move, layout.rows, like);
}

KeyGradients::KeyGradients(ProgramWriter& writer, const KeyLayout& layout, const PairRef& like, DType move, bool moves,
                           RecvBufferRows recv_buffers, int64_t arena_rows)
    : layout_(layout), recv_buffers_(std::move(recv_buffers.casts)), has_owned_(recv_buffers.rows > 0) {
  if (moves) {
    sent_ = arena_pair(writer, move, arena_rows, like);
    owned_ = arena_pair(writer, move, recv_buffers.most_rows, like);
  }
  computed_ = moves && move == DType::kFloat32 ? slice(sent_, {0, layout.rows})
                                               : work_pair(writer, DType::kFloat32, layout.rows, like);
  zero(writer, computed_);
  if (has_owned_) owned_rows_ = writer.add_lists(std::move(recv_buffers.of_shard_row));
}

void KeyGradients::send_back(ProgramWriter& writer, const Exchange& exchange, size_t stage) {
  if (sent_.k.region != computed_.k.region) {
    std::vector<RowSumOp> copies;
    for (const RowCopy& copy : exchange.recvs)
      append_copies(copies, slice(computed_, copy.rows), slice(sent_, copy.rows));
    writer.begin_step(stage);
    writer.sum_rows(std::move(copies));
  }
  const bool lands = !recv_buffers_.empty();
  writer.cast(add_pair_cast(writer, lands ? shared(recv_buffers_[stage]) : borrowed(exchange), sent_, owned_,
                            "dkv stage", {{}, true, static_cast<int>(stage), !lands}));
}

void KeyGradients::finish(ProgramWriter& writer, const PairRef& shard_grads, int head_groups) {
  const bool lands = !recv_buffers_.empty();
  std::vector<RowSumOp> sums;
  // `local`: what this rank's queries contributed, or nothing.
  const auto write = [&](const PairRef& local, Range rows, const PairRef& result) {
    const PairRef remote = !has_owned_ ? PairRef{} : lands ? owned_ : slice(owned_, rows);
    const RowListsRef lists{owned_rows_.lists, owned_rows_.lists < 0 ? 0 : rows.begin};
    sums.push_back({local.k, remote.k, result.k, lists});
    sums.push_back({local.v, remote.v, result.v, lists});
  };
  const auto write_unseen = [&](Range rows, const PairRef& result) {  // by queries of this rank
    if (lands) {
      write({}, rows, result);
    } else if (has_owned_) {
      append_copies(sums, slice(owned_, rows), result);
    } else {
      zero(writer, result);
    }
  };
  int64_t row = 0;
  for (const auto& own : layout_.own) {
    for_each_group(shard_grads, {row, own.shard.begin}, head_groups, write_unseen);
    for_each_group(shard_grads, own.shard, head_groups, [&](Range rows, const PairRef& result) {
      write(slice(computed_, rows.shifted(own.buffer.begin - own.shard.begin)), rows, result);
    });
    row = own.shard.end;
  }
  for_each_group(shard_grads, {row, shard_grads.k.rows * head_groups}, head_groups, write_unseen);
  writer.sum_rows(std::move(sums));
}

}  // namespace tangram
