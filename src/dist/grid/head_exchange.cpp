// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/grid/head_exchange.hpp"

#include <fmt/format.h>

#include "comm/row_moves.hpp"
#include "dist/grid/row_attention.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

template <class View>
View heads_of(View view, int first, int count) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  view.data = static_cast<Byte*>(view.data) + first * view.head_stride * static_cast<int64_t>(size_of(view.dtype));
  view.heads = count;
  return view;
}

}  // namespace

HeadExchange::HeadExchange(RankContext& context, const Dispatch& dispatch, int num_heads)
    : context_(context), num_heads_(num_heads) {
  head_ranks_ = context.plan->grid.head_ranks;
  member_ = context.rank % head_ranks_;
  const int first_rank = context.rank - member_;
  shard_rows_ = dispatch.rows_per_rank();
  runs_.resize(static_cast<size_t>(head_ranks_));
  int64_t row = 0;
  for (const int rank : dispatch.rank_of_chunk) {
    if (rank < first_rank || rank >= first_rank + head_ranks_) continue;
    std::vector<Range>& runs = runs_[static_cast<size_t>(rank - first_rank)];
    if (!runs.empty() && runs.back().end == row) {
      runs.back().end += dispatch.chunk_size;
    } else {
      runs.push_back({row, row + dispatch.chunk_size});
    }
    row += dispatch.chunk_size;
  }
  for (int member = 0; member < head_ranks_; ++member) {
    if (member == member_) continue;
    const int peer = first_rank + member;
    for_each_run(member_, [&](Range group, int64_t shard_row) {
      const int64_t packed = member * shard_rows_ + shard_row;
      to_heads_.sends.push_back({peer, {packed, packed + group.size()}, group.begin});
    });
    for_each_run(member, [&](Range group, int64_t shard_row) {
      to_heads_.recvs.push_back({peer, group, member_ * shard_rows_ + shard_row});
    });
  }
  to_rows_ = {to_heads_.recvs, to_heads_.sends};
}

template <class Visit>
void HeadExchange::for_each_run(int member, Visit visit) const {
  int64_t shard_row = 0;
  for (const Range& run : runs_[static_cast<size_t>(member)]) {
    visit(run, shard_row);
    shard_row += run.size();
  }
}

int HeadExchange::first_head_of(int member) const {
  return static_cast<int>(int64_t{member} * num_heads_ / head_ranks_);
}

TensorView HeadExchange::packed_rows(const TensorView& packed, int member) const {
  return slice_rows(packed, {member * shard_rows_, (member + 1) * shard_rows_});
}

HeadExchange::Exchanged HeadExchange::to_heads(const std::vector<ConstTensorView>& shards, HeadChunk chunk, int stage,
                                               const char* label) {
  PassRecorder& recorder = context_.recorder;
  Exchanged result;
  std::vector<CastTensor> casts;
  recorder.timed(TraceKind::kCopyLocal, stage, [&] {
    for (const ConstTensorView& shard : shards) {
      HostTensor& packed =
          result.packed.emplace_back(recorder.allocate(shard.dtype, shard_rows_ * head_ranks_, chunk.count, shard.dim));
      HostTensor& all =
          result.tensors.emplace_back(allocate_landing(recorder, shard.dtype, group_rows(), chunk.count, shard.dim));
      for (int member = 0; member < head_ranks_; ++member) {
        const ConstTensorView heads = heads_of(shard, first_head_of(member) + chunk.first, chunk.count);
        if (member != member_) {
          comm::copy_rows(heads, packed_rows(packed, member));
          continue;
        }
        for_each_run(member_, [&](Range group, int64_t row) {
          comm::copy_rows(slice_rows(heads, {row, row + group.size()}), slice_rows(all.view(), group));
        });
      }
    }
  });
  for (size_t i = 0; i < shards.size(); ++i) casts.push_back({result.packed[i], result.tensors[i]});
  result.handle = recorder.timed(TraceKind::kPostCast, stage, [&] {
    return context_.communicator->group_cast(to_heads_, casts, fmt::format("{} to heads {}", label, stage));
  });
  return result;
}

HeadExchange::Exchanged HeadExchange::to_rows(const std::vector<ConstTensorView>& heads, int stage, const char* label) {
  PassRecorder& recorder = context_.recorder;
  Exchanged result;
  std::vector<CastTensor> casts;
  for (const ConstTensorView& all : heads) {
    HostTensor& packed = result.packed.emplace_back(
        allocate_landing(recorder, all.dtype, shard_rows_ * head_ranks_, all.heads, all.dim));
    for_each_run(member_, [&](Range group, int64_t row) {
      comm::copy_rows(slice_rows(all, group), slice_rows(packed_rows(packed, member_), {row, row + group.size()}));
    });
  }
  for (size_t i = 0; i < heads.size(); ++i) casts.push_back({heads[i], result.packed[i]});
  result.handle = recorder.timed(TraceKind::kPostReduce, stage, [&] {
    return context_.communicator->group_cast(to_rows_, casts, fmt::format("{} to rows {}", label, stage));
  });
  return result;
}

void HeadExchange::unpack(const Exchanged& back, size_t idx, HeadChunk chunk, const TensorView& shard) {
  TensorView packed = const_cast<HostTensor&>(back.packed[idx]).view();
  const int copies = shares_heads() ? head_ranks_ / num_heads_ : 1;
  for (int member = 0; member < head_ranks_; member += copies) {
    const TensorView target = heads_of(shard, first_head_of(member) + chunk.first, chunk.count);
    if (copies == 1) {
      convert_rows(packed_rows(packed, member), target);
      continue;
    }
    HostTensor sum(DType::kFloat32, shard_rows_, chunk.count, shard.dim);
    convert_rows(packed_rows(packed, member), sum);
    for (int copy = 1; copy < copies; ++copy) {
      const ConstTensorView more = packed_rows(packed, member + copy);
      convert_rows(sum, sum, &more);
    }
    convert_rows(sum, target);
  }
}

}  // namespace tangram
