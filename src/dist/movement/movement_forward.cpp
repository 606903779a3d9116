// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward: q, k and v go out to where the plan computes, out and lse come back and are joined by lse.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "dist/movement/head_groups.hpp"
#include "dist/movement/movement_attention.hpp"
#include "dist/program/merge.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Partial results in memory of their own.
struct PartialBuffer {
  HostTensor out, lse;

  PartialRows rows(Range range) { return {slice_rows(out.view(), range), slice_rows(lse.view(), range)}; }
};

}  // namespace

class MovementAttention::Forward {
 public:
  Forward(const MovementAttention& attention, const DistForwardArgs& args)
      : context_(attention.context_),
        work_(attention.forward_),
        groups_(attention.head_groups_),
        args_(args),
        q_(context_.recorder, args.q, groups_),
        k_(context_.recorder, args.k, groups_),
        v_(context_.recorder, args.v, groups_),
        kv_(context_, {work_.segments, work_.tables->kv_rows, work_.tables->remote_kv_rows}, k_.view(), v_.view()),
        fetched_q_(context_.recorder.allocate_poisoned(args.q.dtype, work_.tables->remote_q_rows, q_.view().heads,
                                                       args.q.dim)),
        own_(partial(q_.view().rows)),
        fetched_(partial(work_.tables->remote_q_rows)),
        merged_(partial(work_.lends_q ? q_.view().rows : 0)) {
    merged_.out.fill(0);
    merged_.lse.fill(-kInfinity);
    if (args.max_logits != nullptr) std::fill_n(args.max_logits, args.q.heads, -kInfinity);
  }

  void run() {
    for (size_t s = 0; s < work_.steps.size(); ++s) {
      for (const auto& handle : arriving_) {
        context_.recorder.wait(*handle, TraceKind::kWaitCast, TraceKind::kTransferCast, static_cast<int>(s));
      }
      arriving_.clear();
      if (s + 1 < work_.steps.size()) send_for(s + 1);
      for (const MovementCall& call : work_.steps[s].calls) compute(s, call);
      if (work_.steps[s].moves_q) send_back(s);
    }
    for (const auto& [stage, handle] : returning_) {
      context_.recorder.wait(*handle, TraceKind::kWaitReduce, TraceKind::kTransferReduce, stage);
    }
    context_.recorder.timed(TraceKind::kFinish, 0, [&] { finish(); });
  }

  /// What backward would fetch again.
  void keep(KeptKv& kept) {
    kept.tensors.push_back(std::move(fetched_q_));
    for (const ConstTensorView& view : {kv_.k(), kv_.v()}) {
      HostTensor copy(view.dtype, view.rows, view.heads, view.dim);
      convert_rows(view, copy);
      kept.tensors.push_back(std::move(copy));
    }
    kept.valid = true;
  }

 private:
  PartialBuffer partial(int64_t rows) {
    const int heads = q_.view().heads;
    return {context_.recorder.allocate(DType::kFloat32, rows, heads, args_.v.dim),
            context_.recorder.allocate(DType::kFloat32, rows, heads, 1)};
  }

  void send_for(size_t stage) {
    const int stage_idx = static_cast<int>(stage);
    if (work_.steps[stage].moves_q) {
      const CastTensor tensors[] = {{q_.view(), fetched_q_}};
      arriving_.push_back(context_.recorder.timed(TraceKind::kPostCast, stage_idx, [&] {
        return context_.communicator->group_cast(work_.tables->stages[stage].q, tensors,
                                                 fmt::format("q stage {}", stage));
      }));
    }
    if (work_.steps[stage].moves_kv) arriving_.push_back(kv_.cast(work_.tables->stages[stage].kv, stage_idx));
  }

  void compute(size_t stage, const MovementCall& call) {
    const PartialRows results = (call.fetched ? fetched_ : own_).rows(call.rows);
    const bool continues = !call.fetched && stage > 0;
    const int heads = results.out.heads;
    std::vector<float> max_logits(static_cast<size_t>(heads), -kInfinity);
    const AttnForwardArgs args{slice_rows(call.fetched ? fetched_q_.view() : q_.view(), call.rows),
                               kv_.k(),
                               kv_.v(),
                               results.out,
                               static_cast<float*>(results.lse.data),
                               args_.max_logits == nullptr ? nullptr : max_logits.data(),
                               {},
                               continues,
                               args_.options};
    context_.compute(static_cast<int>(stage), [&] { context_.backend->forward(*call.prepared, args); });
    if (args_.max_logits == nullptr) return;
    float* const of_group = args_.max_logits + call.group * heads;
    for (int head = 0; head < heads; ++head) {
      of_group[head] = std::max(of_group[head], max_logits[static_cast<size_t>(head)]);
    }
  }

  void send_back(size_t stage) {
    const LseReduceTensors tensors{fetched_.out, fetched_.lse.data<float>(), merged_.out, merged_.lse.data<float>()};
    returning_.emplace_back(static_cast<int>(stage), context_.recorder.timed(TraceKind::kPostReduce, int(stage), [&] {
      return context_.communicator->group_reduce_lse(work_.tables->stages[stage].q, tensors,
                                                     fmt::format("out stage {}", stage));
    }));
  }

  void finish() {
    const int64_t rows = args_.q.rows;
    for (int group = 0; group < groups_; ++group) {
      const Range range{group * rows, (group + 1) * rows};
      PartialRows others;
      if (work_.lends_q) others = merged_.rows(range);
      Sink sink = args_.sink;
      if (!sink.empty()) sink.data += group * own_.out.heads();
      merge_partials(own_.rows(range), work_.lends_q ? &others : nullptr, {sink, args_.q.heads});
    }
    const TensorView lse{{args_.lse, DType::kFloat32, rows, args_.q.heads, 1, args_.q.heads, 1}};
    write_groups(own_.out.view(), nullptr, args_.out, groups_);
    write_groups(own_.lse.view(), nullptr, lse, groups_);
  }

  RankContext& context_;
  const MovementWork& work_;
  const int groups_;
  const DistForwardArgs& args_;
  GroupedRows q_, k_, v_;
  KvBuffer kv_;
  HostTensor fetched_q_;
  PartialBuffer own_;      // of the rank's own rows, what it computes itself
  PartialBuffer fetched_;  // of rows of others
  PartialBuffer merged_;   // of the rank's own rows, what others compute
  // Last: destroyed, and so waited for, before the memory that they use.
  std::vector<std::unique_ptr<CommHandle>> arriving_;
  std::vector<std::pair<int, std::unique_ptr<CommHandle>>> returning_;
};

void MovementAttention::forward(const DistForwardArgs& args) {
  context_.recorder.begin(AttnPass::kForward);
  if (args.kept != nullptr) *args.kept = {};
  Forward pass(*this, args);
  pass.run();
  if (args.kept != nullptr && keeps_) pass.keep(*args.kept);
  reduce_max_logits(context_, args);
}

}  // namespace tangram
