// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward pass: stages add up in float32 through (out, lse); the rows of the next stage travel meanwhile.
#include <cmath>
#include <optional>

#include "core/require.hpp"
#include "dist/pass_plan.hpp"
#include "dist/rank_context.hpp"
#include "dist/rows.hpp"
#include "tangram/env.hpp"

namespace tangram {

namespace {

void check_for_nan(const DistForwardArgs& args, const KvBuffer& buffer) {
  const int heads = args.q.heads;
  const ConstTensorView lse{args.lse, DType::kFloat32, args.q.rows, heads, 1, heads, 1};
  if (!has_nan(args.out) && !has_nan(lse)) return;
  // NaN that came in may come out; NaN that we made may not.
  TANGRAM_ASSERT(has_nan(args.q) || has_nan(args.k) || has_nan(args.v) || has_nan(buffer.k()) || has_nan(buffer.v()));
}

}  // namespace

void reduce_max_logits(RankContext& context, const DistForwardArgs& args) {
  if (args.max_logits == nullptr || context.communicator->size() == 1) return;
  context.recorder.timed(TraceKind::kAllReduce, 0, [&] {
    context.communicator->all_reduce({args.max_logits, static_cast<size_t>(args.q.heads)}, ReduceOp::kMax,
                                     "max_logits");
  });
}

void run_forward(RankContext& context, const DistForwardArgs& args) {
  PassRecorder& recorder = context.recorder;
  recorder.begin(AttnPass::kForward);
  const std::vector<Stage>& stages = context.rank_plan().forward;
  KvBuffer buffer(context, args.k, args.v);

  const size_t last = last_stage_with_work(context.forward);
  HostTensor sum;
  if (last > 0 && args.out.dtype != DType::kFloat32) {
    sum = recorder.allocate(DType::kFloat32, args.out.rows, args.out.heads, args.out.dim);
  }
  const TensorView out = sum.bytes() > 0 ? sum.view() : args.out;

  std::unique_ptr<CommHandle> arriving;
  if (stages.size() > 1) arriving = buffer.cast(stages[1].exchange, 1);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const int stage_idx = static_cast<int>(stage);
    if (stage > 0) {
      recorder.wait(*arriving, TraceKind::kWaitCast, TraceKind::kTransferCast, stage_idx);
      if (stage + 1 < stages.size()) arriving = buffer.cast(stages[stage + 1].exchange, stage_idx + 1);
    }
    if (context.forward[stage] == nullptr) continue;
    AttnForwardArgs call{args.q, buffer.k(), buffer.v(), out, args.lse, args.max_logits, {}, stage > 0, args.options};
    if (stage == last) call.sink = args.sink;
    context.compute(stage_idx, [&] { context.backend->forward(*context.forward[stage], call); });
  }

  if (args.kept != nullptr) {
    *args.kept = {};
    if (context.rank_plan().backward.back().kept) buffer.keep(stages.back(), *args.kept);
  }
  if (sum.bytes() > 0) recorder.timed(TraceKind::kFinish, 0, [&] { convert_rows(sum, args.out); });
  reduce_max_logits(context, args);
  if (Env::get().sanity_check) check_for_nan(args, buffer);
}

}  // namespace tangram
