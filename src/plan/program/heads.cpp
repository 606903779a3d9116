// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/heads.hpp"

#include <algorithm>
#include <utility>

#include "core/require.hpp"

namespace tangram {

namespace {

TensorRef heads_of(TensorRef tensor, int first, int count) {
  tensor.first_head = first;
  tensor.heads = count;
  return tensor;
}

FloatRef moved(FloatRef floats, int64_t rows, int64_t columns) {
  floats.offset += rows * floats.stride + columns;
  return floats;
}

}  // namespace

HeadMoves::HeadMoves(const GridRank& rank, const Dispatch& dispatch, int num_heads, const char* to_heads_label,
                     const char* to_rows_label)
    : to_heads_label_(to_heads_label),
      to_rows_label_(to_rows_label),
      num_heads_(num_heads),
      ulysses_degree_(rank.grid().ulysses_degree),
      member_(rank.member()),
      first_rank_(rank.rank - rank.member()),
      shard_rows_(dispatch.rows_per_rank()),
      runs_(static_cast<size_t>(ulysses_degree_)) {
  std::vector<int64_t> shard_row(static_cast<size_t>(ulysses_degree_));
  int64_t row = 0;
  int64_t first_chunk = 0;
  for (const OwnedChunks& chunks : dispatch.rank_of_chunk.runs()) {
    const int owner = chunks.rank;
    const int64_t size = (chunks.end - std::exchange(first_chunk, chunks.end)) * dispatch.chunk_size;
    if (owner < first_rank_ || owner >= first_rank_ + ulysses_degree_) continue;
    const size_t member = static_cast<size_t>(owner - first_rank_);
    std::vector<Run>& runs = runs_[member];
    if (!runs.empty() && runs.back().group.end == row) {
      runs.back().group.end += size;
    } else {
      runs.push_back({{row, row + size}, shard_row[member]});
    }
    row += size;
    shard_row[member] += size;
  }
  Exchange to_heads;
  for (int peer = 0; peer < ulysses_degree_; ++peer) {
    if (peer == member_) continue;
    const int64_t packed_here = slot_of(peer, member_) * shard_rows_;
    const int64_t packed_there = slot_of(member_, peer) * shard_rows_;
    for (const Run& run : runs_[static_cast<size_t>(member_)]) {
      const int64_t begin = packed_here + run.shard_row;
      to_heads.sends.push_back({first_rank_ + peer, {begin, begin + run.group.size()}, run.group.begin});
    }
    for (const Run& run : runs_[static_cast<size_t>(peer)]) {
      to_heads.recvs.push_back({first_rank_ + peer, run.group, packed_there + run.shard_row});
    }
  }
  to_rows_ = shared({to_heads.recvs, to_heads.sends});
  to_heads_ = shared(std::move(to_heads));
}

GroupCastTensor HeadMoves::pack(ProgramWriter& writer, const TensorRef& shard, HeadRange chunk, const TensorRef& all,
                                std::vector<RowSumOp>& copies) const {
  const TensorRef packed = writer.arena(all.dtype, shard_rows_ * (ulysses_degree_ - 1), chunk.count, all.dim);
  for (int peer = 0; peer < ulysses_degree_; ++peer) {
    const TensorRef heads = heads_of(shard, first_head_of(peer) + chunk.first, chunk.count);
    if (peer != member_) {
      const int64_t first = slot_of(peer, member_) * shard_rows_;
      copies.push_back({heads, {}, packed.slice({first, first + shard_rows_})});
      continue;
    }
    for (const Run& run : runs_[static_cast<size_t>(member_)]) {
      copies.push_back({heads.slice({run.shard_row, run.shard_row + run.group.size()}), {}, all.slice(run.group)});
    }
  }
  return {to_heads_, packed, all, to_heads_label_};
}

GroupCastTensor HeadMoves::back(ProgramWriter& writer, const TensorRef& all, TensorRef& landed) const {
  landed = writer.arena(all.dtype, shard_rows_ * (ulysses_degree_ - 1), all.heads, all.dim);
  return {to_rows_, all, landed, to_rows_label_};
}

void HeadMoves::unpack(ProgramWriter& writer, const TensorRef& all, const TensorRef& landed, HeadRange chunk,
                       const TensorRef& shard, std::vector<RowSumOp>& copies) const {
  const int num_copies = shares_heads() ? ulysses_degree_ / num_heads_ : 1;
  const std::vector<Run>& own_runs = runs_[static_cast<size_t>(member_)];
  for (int first = 0; first < ulysses_degree_; first += num_copies) {
    const TensorRef target = heads_of(shard, first_head_of(first) + chunk.first, chunk.count);
    if (num_copies == 1 && first != member_) {
      const int64_t begin = slot_of(first, member_) * shard_rows_;
      copies.push_back({landed.slice({begin, begin + shard_rows_}), {}, target});
      continue;
    }
    for (const Run& run : own_runs) {  // in which the own heads lie
      const Range rows = {run.shard_row, run.shard_row + run.group.size()};
      if (num_copies == 1) {
        copies.push_back({all.slice(run.group), {}, target.slice(rows)});
        continue;
      }
      std::vector<TensorRef> terms;
      for (int member = first; member < first + num_copies; ++member) {
        const int64_t begin = slot_of(member, member_) * shard_rows_;
        terms.push_back(member == member_ ? all.slice(run.group)
                                          : landed.slice({begin + rows.begin, begin + rows.end}));
      }
      writer.sum_in_order(terms, target.slice(rows));
    }
  }
}

std::shared_ptr<const Exchange> HeadMoves::whole_parts() const {
  Exchange exchange;
  for (int peer = 0; peer < ulysses_degree_; ++peer) {
    if (peer == member_) continue;
    const int64_t here = slot_of(peer, member_), there = slot_of(member_, peer);
    exchange.sends.push_back({first_rank_ + peer, {here, here + 1}, there});
    exchange.recvs.push_back({first_rank_ + peer, {here, here + 1}, there});
  }
  return shared(std::move(exchange));
}

FloatRef HeadMoves::part(const TensorRef& parts, int member, int count) const {
  return {parts.memory, slot_of(member, member_) * int64_t{parts.dim}, count, parts.region};
}

TensorRef HeadMoves::arena_parts(ProgramWriter& writer, int count) const {
  const int64_t unit = writer.target().float_unit, units = (shard_rows_ * count + unit - 1) / unit;
  return writer.arena(DType::kFloat32, ulysses_degree_ - 1, 1, static_cast<int>(units * unit));
}

void HeadMoves::append_runs(std::vector<FloatCopyOp>& copies, int member, const FloatRef& shard, const FloatRef& group,
                            int count, bool to_group) const {
  for (const Run& run : runs_[static_cast<size_t>(member)]) {
    const FloatRef in_shard = moved(shard, run.shard_row, 0), in_group = moved(group, run.group.begin, 0);
    copies.push_back({to_group ? in_shard : in_group, to_group ? in_group : in_shard, run.group.size(), count});
  }
}

GroupCastTensor HeadMoves::pack_floats(ProgramWriter& writer, const FloatRef& shard, HeadRange chunk,
                                       TensorRef& landed) const {
  const TensorRef packed = arena_parts(writer, chunk.count);
  landed = arena_parts(writer, chunk.count);
  std::vector<FloatCopyOp> copies;
  for (int peer = 0; peer < ulysses_degree_; ++peer) {
    if (peer == member_) continue;
    copies.push_back({moved(shard, 0, first_head_of(peer) + chunk.first), part(packed, peer, chunk.count), shard_rows_,
                      chunk.count});
  }
  writer.copy_floats(std::move(copies));
  return {whole_parts(), packed, landed, to_heads_label_};
}

void HeadMoves::unpack_floats(ProgramWriter& writer, const FloatRef& shard, HeadRange chunk, const TensorRef& landed,
                              const FloatRef& all) const {
  std::vector<FloatCopyOp> copies;
  for (int member = 0; member < ulysses_degree_; ++member) {
    const FloatRef from =
        member == member_ ? moved(shard, 0, first_head() + chunk.first) : part(landed, member, chunk.count);
    append_runs(copies, member, from, all, chunk.count, true);
  }
  writer.copy_floats(std::move(copies));
}

GroupCastTensor HeadMoves::floats_back(ProgramWriter& writer, const FloatRef& all, int count, TensorRef& landed) const {
  const TensorRef packed = arena_parts(writer, count);
  landed = arena_parts(writer, count);
  std::vector<FloatCopyOp> copies;
  for (int peer = 0; peer < ulysses_degree_; ++peer) {
    if (peer != member_) append_runs(copies, peer, part(packed, peer, count), all, count, false);
  }
  writer.copy_floats(std::move(copies));
  return {whole_parts(), packed, landed, to_rows_label_};
}

void HeadMoves::unpack_floats_back(ProgramWriter& writer, const FloatRef& all, const TensorRef& landed, HeadRange chunk,
                                   const FloatRef& shard) const {
  std::vector<FloatCopyOp> copies;
  for (int member = 0; member < ulysses_degree_; ++member) {
    const FloatRef target = moved(shard, 0, first_head_of(member) + chunk.first);
    if (member == member_) {
      append_runs(copies, member, target, all, chunk.count, false);
    } else {
      copies.push_back({part(landed, member, chunk.count), target, shard_rows_, chunk.count});
    }
  }
  writer.copy_floats(std::move(copies));
}

}  // namespace tangram
