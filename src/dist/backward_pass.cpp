// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward pass: dq adds up over stages in float32; dk and dv of a stage's rows are complete once it has computed,
// and travel to their owners while later stages compute.
#include <fmt/format.h>

#include "core/require.hpp"
#include "dist/pass_plan.hpp"
#include "dist/rank_context.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

/// Gradients of the K/V buffer, and what other ranks contribute to those of the shard.
class KvGradients {
 public:
  KvGradients(RankContext& context, const DistBackwardArgs& args) : context_(context), args_(args) {
    const int64_t kv_rows = context.rank_plan().kv_rows;
    dk_ = zeros(DType::kFloat32, kv_rows, args.dk);
    dv_ = zeros(DType::kFloat32, kv_rows, args.dv);
    if (context.rank_plan().backward.size() == 1) return;
    const DType dtype = context.plan->config.reduce_dtype;
    owned_dk_ = zeros(dtype, args.dk.rows, args.dk);
    owned_dv_ = zeros(dtype, args.dv.rows, args.dv);
    if (dtype != DType::kFloat32) {
      sent_dk_ = context.recorder.allocate(dtype, kv_rows, args.dk.heads, args.dk.dim);
      sent_dv_ = context.recorder.allocate(dtype, kv_rows, args.dv.heads, args.dv.dim);
    }
  }

  TensorView dk() { return dk_; }
  TensorView dv() { return dv_; }

  /// Sends the rows of a stage to their owners.
  void reduce(const Stage& stage, int stage_idx) {
    const bool convert = context_.plan->config.reduce_dtype != DType::kFloat32;
    if (convert) {
      for (const RowCopy& copy : stage.exchange.recvs) {
        convert_rows(slice_rows(dk_.view(), copy.rows), slice_rows(sent_dk_.view(), copy.rows));
        convert_rows(slice_rows(dv_.view(), copy.rows), slice_rows(sent_dv_.view(), copy.rows));
      }
    }
    const ReduceTensor tensors[] = {{convert ? sent_dk_.view() : dk_.view(), owned_dk_},
                                    {convert ? sent_dv_.view() : dv_.view(), owned_dv_}};
    context_.recorder.timed(TraceKind::kPostReduce, stage_idx, [&] {
      reduces_.push_back({stage_idx, context_.communicator->group_reduce(stage.exchange, tensors, ReduceOp::kSum,
                                                                         fmt::format("dkv stage {}", stage_idx))});
    });
  }

  void finish() {
    for (const Reduce& reduce : reduces_) {
      context_.recorder.wait(*reduce.handle, TraceKind::kWaitReduce, TraceKind::kTransferReduce, reduce.stage_idx);
    }
    context_.recorder.timed(TraceKind::kFinish, 0, [&] {
      write(dk_, owned_dk_, args_.dk);
      write(dv_, owned_dv_, args_.dv);
    });
  }

 private:
  struct Reduce {
    int stage_idx;
    std::unique_ptr<CommHandle> handle;
  };

  HostTensor zeros(DType dtype, int64_t rows, const TensorView& like) {
    HostTensor tensor = context_.recorder.allocate(dtype, rows, like.heads, like.dim);
    tensor.fill(0);
    return tensor;
  }

  /// Shard rows: what came from others plus what this rank's own queries contributed.
  void write(const HostTensor& buffer, const HostTensor& owned, const TensorView& result) {
    if (owned.bytes() > 0) {
      convert_rows(owned, result);
    } else {
      fill_rows(result, 0);
    }
    for (const KvSegment& segment : context_.rank_plan().segments) {
      if (segment.owner != context_.rank) continue;
      const Range shard{segment.owner_row, segment.owner_row + segment.global.size()};
      const ConstTensorView local = slice_rows(buffer.view(), {segment.row, segment.row + segment.global.size()});
      if (owned.bytes() > 0) {
        const ConstTensorView remote = slice_rows(owned.view(), shard);
        convert_rows(local, slice_rows(result, shard), &remote);
      } else {
        convert_rows(local, slice_rows(result, shard));
      }
    }
  }

  RankContext& context_;
  const DistBackwardArgs& args_;
  HostTensor dk_, dv_;              // [kv_rows, ...] float32
  HostTensor owned_dk_, owned_dv_;  // [k shard rows, ...] in reduce_dtype; empty without remote stages
  HostTensor sent_dk_, sent_dv_;    // [kv_rows, ...] in reduce_dtype unless that is float32
  std::vector<Reduce> reduces_;     // last: destroyed, and so waited for, before the memory they use
};

}  // namespace

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

void run_backward(RankContext& context, const DistBackwardArgs& args) {
  PassRecorder& recorder = context.recorder;
  recorder.begin(AttnPass::kBackward);
  const std::vector<Stage>& stages = context.rank_plan().backward;
  const bool has_kept = stages.back().kept && args.kept != nullptr && args.kept->valid;
  const std::vector<size_t> order = stage_order(stages.size(), has_kept);

  KvBuffer buffer(context, args.k, args.v);
  if (has_kept) buffer.restore(stages.back(), *args.kept);
  KvGradients gradients(context, args);
  HostTensor sum;
  if (args.dq.dtype != DType::kFloat32) {
    sum = recorder.allocate(DType::kFloat32, args.dq.rows, args.dq.heads, args.dq.dim);
  }
  const TensorView dq = sum.bytes() > 0 ? sum.view() : args.dq;

  const auto must_cast = [&](size_t stage) { return stage != 0 && !(has_kept && stage + 1 == stages.size()); };
  std::unique_ptr<CommHandle> arriving;
  bool is_first_call = true;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t stage = order[i];
    const int stage_idx = static_cast<int>(stage);
    if (must_cast(stage)) recorder.wait(*arriving, TraceKind::kWaitCast, TraceKind::kTransferCast, stage_idx);
    if (i + 1 < order.size() && must_cast(order[i + 1])) {
      arriving = buffer.cast(stages[order[i + 1]].exchange, static_cast<int>(order[i + 1]));
    }
    if (context.backward[stage] != nullptr) {
      AttnBackwardArgs call{args.q, buffer.k(),     buffer.v(),     args.out, args.lse, args.dout,
                            dq,     gradients.dk(), gradients.dv(), nullptr,  {},       !is_first_call,
                            true,   args.options};
      if (is_first_call) {  // dsink depends on no keys, so any one call gives all of it
        call.dsink = args.dsink;
        call.sink = args.sink;
      }
      context.compute(stage_idx, [&] { context.backend->backward(*context.backward[stage], call); });
      is_first_call = false;
    }
    if (stage != 0) gradients.reduce(stages[stage], stage_idx);
  }
  if (sum.bytes() > 0) recorder.timed(TraceKind::kFinish, 0, [&] { convert_rows(sum, args.dq); });
  gradients.finish();
  reduce_dsink(context, args);
}

}  // namespace tangram
