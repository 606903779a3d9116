// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/rank_step.hpp"

#include <utility>

namespace tangram::cli {

namespace {

/// Rows of a rank in its own memory.
class RankTensor {
 public:
  RankTensor(StepRank& rank, DType dtype, const Dispatch& dispatch, int heads, int dim)
      : RankTensor(rank, HostTensor(dtype, dispatch.rows_per_rank(), heads, dim)) {}
  /// The rank's rows of the whole tensor.
  RankTensor(StepRank& rank, const Dispatch& dispatch, const HostTensor& whole)
      : RankTensor(rank, whole.dtype(), dispatch, whole.heads(), whole.dim()) {
    dispatch_rows(dispatch, rank.control().rank(), whole, shard_);
    if (memory_ != nullptr) rank_.copy(memory_.get(), shard_.view().data, shard_.bytes());
  }

  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  float* floats() const { return static_cast<float*>(view_.data); }
  HostTensor take() {
    if (memory_ != nullptr) rank_.copy(shard_.view().data, memory_.get(), shard_.bytes());
    return std::move(shard_);
  }

 private:
  RankTensor(StepRank& rank, HostTensor shard)
      : rank_(rank), shard_(std::move(shard)), memory_(rank.allocate(shard_.bytes())), view_(shard_.view()) {
    if (memory_ != nullptr) view_.data = memory_.get();
  }

  StepRank& rank_;
  HostTensor shard_;
  std::shared_ptr<void> memory_;  // null: the shard's
  TensorView view_;
};

}  // namespace

RankResults run_rank(StepRank& rank, const Plan& plan, const StepInputs& inputs, const StepOptions& options,
                     RankFigures& figures) {
  const HeadConfig& heads = plan.config.heads;
  const Dispatch &q_rows = plan.q_dispatch, &k_rows = plan.k_dispatch;
  const RankTensor q(rank, q_rows, inputs.q), k(rank, k_rows, inputs.k), v(rank, k_rows, inputs.v);
  const RankTensor dout(rank, q_rows, inputs.dout);
  RankTensor out(rank, heads.dtype, q_rows, heads.num_heads_q, heads.head_dim_v);
  RankTensor lse(rank, DType::kFloat32, q_rows, heads.num_heads_q, 1);
  RankTensor dq(rank, heads.dtype, q_rows, heads.num_heads_q, heads.head_dim);
  RankTensor dk(rank, heads.dtype, k_rows, heads.num_heads_kv, heads.head_dim);
  RankTensor dv(rank, heads.dtype, k_rows, heads.num_heads_kv, heads.head_dim_v);

  KeptKv kept;
  const AttnOptions attn = make_attn_options(options);
  DistForwardArgs forward{.q = q, .k = k, .v = v, .out = out, .lse = lse.floats(), .options = attn};
  DistBackwardArgs backward{.q = q,
                            .k = k,
                            .v = v,
                            .out = out,
                            .lse = lse.floats(),
                            .dout = dout,
                            .dq = dq,
                            .dk = dk,
                            .dv = dv,
                            .options = attn};
  if (keeps_inputs(plan)) forward.kept = &kept, backward.kept = &kept;
  for (int64_t repeat = 0; repeat < options.num_repeats; ++repeat) {
    figures.forward.push_back(rank.measure([&](void* stream) { rank.attention().forward(forward, stream); }));
    figures.backward.push_back(rank.measure([&](void* stream) { rank.attention().backward(backward, stream); }));
  }
  return {out.take(), lse.take(), dq.take(), dk.take(), dv.take()};
}

}  // namespace tangram::cli
