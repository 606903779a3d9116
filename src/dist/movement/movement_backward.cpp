// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backward: q, dout, lse and delta go out with k and v; parts of dq, dk and dv come back and are added by their owner.
#include <fmt/format.h>

#include <array>

#include "dist/movement/head_groups.hpp"
#include "dist/movement/movement_attention.hpp"
#include "dist/program/merge.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

/// Gradients of one tensor: what this rank computes for rows of all ranks (float32), what of it is sent, in
/// reduce_dtype, and what comes from others for rows of its own.
struct Gradients {
  HostTensor computed, sent, received;

  TensorView outgoing() { return received.dtype() != DType::kFloat32 ? sent.view() : computed.view(); }
  /// Rounds the rows that an exchange sends back.
  void round(const std::vector<RowCopy>& copies) {
    if (sent.bytes() == 0) return;
    for (const RowCopy& copy : copies) {
      convert_rows(slice_rows(computed.view(), copy.rows), slice_rows(sent.view(), copy.rows));
    }
  }
};

ConstTensorView lse_view(const float* lse, const ConstTensorView& q) {
  return {lse, DType::kFloat32, q.rows, q.heads, 1, q.heads, 1};
}

}  // namespace

class MovementAttention::Backward {
 public:
  Backward(const MovementAttention& attention, const DistBackwardArgs& args)
      : context_(attention.context_),
        work_(attention.backward_),
        groups_(attention.head_groups_),
        args_(args),
        kept_(attention.keeps_ && args.kept != nullptr && args.kept->valid ? args.kept : nullptr),
        delta_of_heads_(context_.recorder.allocate(DType::kFloat32, args.q.rows, args.q.heads, 1)),
        q_(context_.recorder, args.q, groups_),
        k_(context_.recorder, args.k, groups_),
        v_(context_.recorder, args.v, groups_),
        dout_(context_.recorder, args.dout, groups_),
        lse_(context_.recorder, lse_view(args.lse, args.q), groups_),
        delta_(context_.recorder, with_delta(), groups_) {
    if (kept_ == nullptr) {
      kv_.emplace(context_, KvLayout{work_.segments, work_.tables->kv_rows, work_.tables->remote_kv_rows}, k_.view(),
                  v_.view());
      fetched_q_ = landing(q_.view());
    }
    fetched_dout_ = landing(dout_.view());
    fetched_lse_ = landing(lse_.view());
    fetched_delta_ = landing(delta_.view());
    dq_ = gradients(q_.view(), work_.tables->remote_q_rows, work_.lends_q);
    own_dq_ = context_.recorder.allocate(DType::kFloat32, q_.view().rows, q_.view().heads, q_.view().dim);
    dk_ = gradients(k_.view(), work_.tables->kv_rows, work_.lends_kv);
    dv_ = gradients(v_.view(), work_.tables->kv_rows, work_.lends_kv);
    dk_.computed.fill(0);
    dv_.computed.fill(0);
  }

  void run() {
    for (size_t s = 0; s < work_.steps.size(); ++s) {
      for (const auto& handle : arriving_) {
        context_.recorder.wait(*handle, TraceKind::kWaitCast, TraceKind::kTransferCast, static_cast<int>(s));
      }
      arriving_.clear();
      if (s + 1 < work_.steps.size()) send_for(s + 1);
      for (const MovementCall& call : work_.steps[s].calls) compute(s, call);
      if (work_.steps[s].moves_q) send_back_dq(s);
      for (const size_t stage : work_.steps[s].complete_kv) send_back_dkv(stage);
    }
    if (args_.dsink != nullptr) {
      compute_dsink({args_.sink, args_.q.heads}, lse_view(args_.lse, args_.q), delta_of_heads_, args_.dsink);
    }
    for (const auto& [stage, handle] : returning_) {
      context_.recorder.wait(*handle, TraceKind::kWaitReduce, TraceKind::kTransferReduce, stage);
    }
    context_.recorder.timed(TraceKind::kFinish, 0, [&] {
      const ConstTensorView dq_of_others = dq_.received;
      write_groups(own_dq_.view(), work_.lends_q ? &dq_of_others : nullptr, args_.dq, groups_);
      write_shard(dk_, args_.dk);
      write_shard(dv_, args_.dv);
    });
  }

 private:
  ConstTensorView with_delta() {
    compute_delta(args_.out, args_.dout, delta_of_heads_);
    return delta_of_heads_;
  }

  HostTensor landing(const ConstTensorView& like) {
    return context_.recorder.allocate_poisoned(like.dtype, work_.tables->remote_q_rows, like.heads, like.dim);
  }

  Gradients gradients(const ConstTensorView& shard, int64_t rows, bool comes_back) {
    const DType dtype = context_.plan->config.reduce_dtype;
    Gradients result;
    result.computed = context_.recorder.allocate(DType::kFloat32, rows, shard.heads, shard.dim);
    if (dtype != DType::kFloat32) result.sent = context_.recorder.allocate(dtype, rows, shard.heads, shard.dim);
    result.received = context_.recorder.allocate(dtype, comes_back ? shard.rows : 0, shard.heads, shard.dim);
    result.received.fill(0);
    return result;
  }

  ConstTensorView fetched_q() const { return kept_ != nullptr ? kept_->tensors[0].view() : fetched_q_.view(); }
  ConstTensorView k() const { return kept_ != nullptr ? kept_->tensors[1].view() : kv_->k(); }
  ConstTensorView v() const { return kept_ != nullptr ? kept_->tensors[2].view() : kv_->v(); }

  void send_for(size_t stage) {
    const int stage_idx = static_cast<int>(stage);
    const MovementStage& tables = work_.tables->stages[stage];
    if (work_.steps[stage].moves_q) {
      std::vector<CastTensor> tensors{
          {dout_.view(), fetched_dout_}, {lse_.view(), fetched_lse_}, {delta_.view(), fetched_delta_}};
      if (kept_ == nullptr) tensors.push_back({q_.view(), fetched_q_});
      arriving_.push_back(context_.recorder.timed(TraceKind::kPostCast, stage_idx, [&] {
        return context_.communicator->group_cast(tables.q, tensors, fmt::format("dout stage {}", stage));
      }));
    }
    if (work_.steps[stage].moves_kv && kept_ == nullptr) arriving_.push_back(kv_->cast(tables.kv, stage_idx));
  }

  void compute(size_t stage, const MovementCall& call) {
    const auto rows_of = [&](const ConstTensorView& own, const ConstTensorView& fetched) {
      return slice_rows(call.fetched ? fetched : own, call.rows);
    };
    AttnBackwardArgs args;
    args.q = rows_of(q_.view(), fetched_q());
    args.k = k();
    args.v = v();
    args.lse = static_cast<const float*>(rows_of(lse_.view(), fetched_lse_).data);
    args.delta = static_cast<const float*>(rows_of(delta_.view(), fetched_delta_).data);
    args.dout = rows_of(dout_.view(), fetched_dout_);
    args.dq = slice_rows(call.fetched ? dq_.computed.view() : own_dq_.view(), call.rows);
    args.dk = dk_.computed;
    args.dv = dv_.computed;
    args.accumulate_dq = !call.fetched && stage > 0;
    args.accumulate_dkv = true;
    args.options = args_.options;
    context_.compute(static_cast<int>(stage), [&] { context_.backend->backward(*call.prepared, args); });
  }

  void send_back(const Exchange& exchange, std::span<const ReduceTensor> tensors, const char* label, size_t stage) {
    const int stage_idx = static_cast<int>(stage);
    returning_.emplace_back(stage_idx, context_.recorder.timed(TraceKind::kPostReduce, stage_idx, [&] {
      return context_.communicator->group_reduce(exchange, tensors, ReduceOp::kSum,
                                                 fmt::format("{} stage {}", label, stage));
    }));
  }

  void send_back_dq(size_t stage) {
    const Exchange& exchange = work_.tables->stages[stage].q;
    dq_.round(exchange.recvs);
    const ReduceTensor tensors[] = {{dq_.outgoing(), dq_.received}};
    send_back(exchange, tensors, "dq", stage);
  }

  void send_back_dkv(size_t stage) {
    const Exchange& exchange = work_.tables->stages[stage].kv;
    dk_.round(exchange.recvs);
    dv_.round(exchange.recvs);
    const ReduceTensor tensors[] = {{dk_.outgoing(), dk_.received}, {dv_.outgoing(), dv_.received}};
    send_back(exchange, tensors, "dkv", stage);
  }

  /// Rows of the shard: what others computed, and this rank where it sees them.
  void write_shard(const Gradients& gradients, const TensorView& result) {
    HostTensor sum(DType::kFloat32, groups_ * result.rows, gradients.computed.heads(), gradients.computed.dim());
    if (work_.lends_kv) {
      convert_rows(gradients.received, sum);
    } else {
      sum.fill(0);
    }
    for (const KvSegment& segment : work_.segments) {
      if (segment.owner != context_.rank) continue;
      const TensorView shard = slice_rows(sum.view(), {segment.owner_row, segment.owner_row + segment.global.size()});
      const ConstTensorView others = shard;
      convert_rows(slice_rows(gradients.computed.view(), {segment.row, segment.row + segment.global.size()}), shard,
                   &others);
    }
    write_groups(sum.view(), nullptr, result, groups_);
  }

  RankContext& context_;
  const MovementWork& work_;
  const int groups_;
  const DistBackwardArgs& args_;
  const KeptKv* const kept_;  // null: everything is fetched again
  HostTensor delta_of_heads_;
  GroupedRows q_, k_, v_, dout_, lse_, delta_;
  std::optional<KvBuffer> kv_;
  HostTensor fetched_q_, fetched_dout_, fetched_lse_, fetched_delta_;
  HostTensor own_dq_;  // float32, what this rank computes for its own rows
  Gradients dq_;       // `computed` and `sent` are of fetched rows
  Gradients dk_, dv_;  // `computed` and `sent` are of the K/V buffer
  // Last: destroyed, and so waited for, before the memory that they use.
  std::vector<std::unique_ptr<CommHandle>> arriving_;
  std::vector<std::pair<int, std::unique_ptr<CommHandle>>> returning_;
};

void MovementAttention::backward(const DistBackwardArgs& args) {
  context_.recorder.begin(AttnPass::kBackward);
  Backward(*this, args).run();
  reduce_dsink(context_, args);
}

}  // namespace tangram
