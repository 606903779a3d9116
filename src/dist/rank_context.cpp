// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/rank_context.hpp"

#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "comm/row_moves.hpp"
#include "core/require.hpp"
#include "dist/rows.hpp"
#include "tangram/env.hpp"

namespace tangram {

double steady_now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void PassRecorder::begin(AttnPass pass) {
  pass_ = pass;
  memory_ = {};
  std::erase_if(events_, [pass](const TraceEvent& event) { return event.pass == pass; });
}

void PassRecorder::wait(CommHandle& handle, TraceKind wait_kind, TraceKind transfer_kind, int stage) {
  timed(wait_kind, stage, [&] { handle.wait(); });
  const CommTimes times = handle.times();
  events_.push_back({transfer_kind, pass_, stage, times.started_s, times.finished_s});
}

HostTensor PassRecorder::allocate(DType dtype, int64_t rows, int heads, int dim) {
  HostTensor tensor(dtype, rows, heads, dim);
  memory_.buffer_bytes += tensor.bytes();
  return tensor;
}

HostTensor PassRecorder::allocate_poisoned(DType dtype, int64_t rows, int heads, int dim) {
  HostTensor tensor = allocate(dtype, rows, heads, dim);
  if (Env::get().sanity_check) tensor.fill(std::numeric_limits<float>::quiet_NaN());
  return tensor;
}

void RankContext::compute(int stage, const std::function<void()>& call) {
  recorder.timed(TraceKind::kCompute, stage, [&] {
    try {
      call();
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
  });
}

KvBuffer::KvBuffer(RankContext& context, const KvLayout& layout, const ConstTensorView& k_shard,
                   const ConstTensorView& v_shard)
    : context_(context), layout_(layout), k_shard_(k_shard), v_shard_(v_shard) {
  context.recorder.set_remote_rows(layout.remote_kv_rows);
  if (layout.remote_kv_rows == 0 && layout.segments.size() <= 1) {
    const int64_t first = layout.segments.empty() ? 0 : layout.segments.front().owner_row;
    k_view_ = slice_rows(k_shard, {first, first + layout.kv_rows});
    v_view_ = slice_rows(v_shard, {first, first + layout.kv_rows});
    return;
  }
  k_ = context.recorder.allocate(k_shard.dtype, layout.kv_rows, k_shard.heads, k_shard.dim);
  v_ = context.recorder.allocate(v_shard.dtype, layout.kv_rows, v_shard.heads, v_shard.dim);
  k_view_ = k_;
  v_view_ = v_;
  if (Env::get().sanity_check) {
    // Whoever computes with a row before it has come gets NaN.
    k_.fill(std::numeric_limits<float>::quiet_NaN());
    v_.fill(std::numeric_limits<float>::quiet_NaN());
  }
  context.recorder.timed(TraceKind::kCopyLocal, 0, [&] { copy_local_rows(); });
}

void KvBuffer::copy_local_rows() {
  for (const KvSegment& segment : layout_.segments) {
    if (segment.owner != context_.rank) continue;
    const Range from{segment.owner_row, segment.owner_row + segment.global.size()};
    const Range to{segment.row, segment.row + segment.global.size()};
    comm::copy_rows(slice_rows(k_shard_, from), slice_rows(k_.view(), to));
    comm::copy_rows(slice_rows(v_shard_, from), slice_rows(v_.view(), to));
  }
}

std::unique_ptr<CommHandle> KvBuffer::cast(const Exchange& exchange, int stage_idx) {
  // A rank that needs no remote rows may have no buffer of its own; its shard still serves the others.
  const TensorView k_target =
      k_.bytes() > 0 ? k_.view() : TensorView{{nullptr, k_shard_.dtype, 0, k_shard_.heads, k_shard_.dim, 0, 0}};
  const TensorView v_target =
      v_.bytes() > 0 ? v_.view() : TensorView{{nullptr, v_shard_.dtype, 0, v_shard_.heads, v_shard_.dim, 0, 0}};
  const CastTensor tensors[] = {{k_shard_, k_target}, {v_shard_, v_target}};
  return context_.recorder.timed(TraceKind::kPostCast, stage_idx, [&] {
    return context_.communicator->group_cast(exchange, tensors, fmt::format("kv stage {}", stage_idx));
  });
}

void reduce_max_logits(RankContext& context, const DistForwardArgs& args) {
  if (args.max_logits == nullptr || context.communicator->size() == 1) return;
  context.recorder.timed(TraceKind::kAllReduce, 0, [&] {
    context.communicator->all_reduce({args.max_logits, static_cast<size_t>(args.q.heads)}, ReduceOp::kMax,
                                     "max_logits");
  });
}

void reduce_dsink(RankContext& context, const DistBackwardArgs& args) {
  if (args.dsink == nullptr || args.sink.layout == SinkLayout::kSsh || args.dsink_reduce == DsinkReduce::kNone ||
      context.communicator->size() == 1) {
    return;
  }
  const size_t count = static_cast<size_t>(args.sink.seqlen_sink) * static_cast<size_t>(args.q.heads);
  const ReduceOp op = args.dsink_reduce == DsinkReduce::kSum ? ReduceOp::kSum : ReduceOp::kAvg;
  context.recorder.timed(TraceKind::kAllReduce, 0,
                         [&] { context.communicator->all_reduce({args.dsink, count}, op, "dsink"); });
}

}  // namespace tangram
