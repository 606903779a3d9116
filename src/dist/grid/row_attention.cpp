// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/grid/row_attention.hpp"

#include <limits>

#include "tangram/env.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {

namespace {

/// One row group: the block is all there is.
class LocalRows final : public RowAttention {
 public:
  explicit LocalRows(RankContext& context) : RowAttention(context) {}

  void forward(const RowForwardArgs& args) override {
    context_.compute(args.stage, [&] { context_.backend->forward(*steps_for(args.attn.k.heads).front(), args.attn); });
  }
  void backward(const RowBackwardArgs& args) override {
    context_.compute(args.stage, [&] { context_.backend->backward(*steps_for(args.attn.k.heads).front(), args.attn); });
  }
};

}  // namespace

RowAttention::RowAttention(RankContext& context) : context_(context) {
  const GridPlan& grid = context.plan->grid;
  group_ = context.rank / grid.head_ranks;
  member_ = context.rank % grid.head_ranks;
  for (const int heads_kv : grid.head_chunks) prepare(heads_kv);
}

void RowAttention::prepare(int heads_kv) {
  if (prepared_.contains(heads_kv)) return;
  const Plan& plan = *context_.plan;
  const HeadConfig& heads = plan.config.heads;
  const int local_kv = std::max(1, heads.num_heads_kv / plan.grid.head_ranks);
  const int heads_q = heads_kv * (heads.num_heads_q / plan.grid.head_ranks / local_kv);
  std::vector<std::unique_ptr<PreparedMask>>& prepared = prepared_[heads_kv];
  for (const GridStep& step : steps()) {
    const bool is_whole = step.block < 0;
    const int64_t keys = is_whole                                   ? plan.mask.seqlen_k()
                         : plan.grid.row_move == RowMove::kSubRings ? step.sub_rings.rows
                                                                    : block_rows();
    const AttnShape shape{plan.q_dispatch.rows_per_rank() * plan.grid.head_ranks,
                          keys,
                          heads_q,
                          heads_kv,
                          heads.head_dim,
                          heads.head_dim_v,
                          heads.dtype};
    const bool has_work = prepared.empty() || !step.slices.empty();
    prepared.push_back(has_work ? prepare_slices(*context_.backend, step.slices, shape) : nullptr);
  }
}

int64_t RowAttention::block_rows() const {
  return context_.plan->k_dispatch.rows_per_rank() * context_.plan->grid.head_ranks;
}

HostTensor RowAttention::allocate(DType dtype, int64_t rows, const ConstTensorView& like) {
  return allocate_landing(context_.recorder, dtype, rows, like.heads, like.dim);
}

std::unique_ptr<RowAttention> make_row_attention(RankContext& context) {
  switch (context.plan->grid.row_move) {
    case RowMove::kNone: return std::make_unique<LocalRows>(context);
    case RowMove::kRing: return make_ring_rows(context);
    case RowMove::kGather: return make_gather_rows(context);
    case RowMove::kSubRings: return make_sub_ring_rows(context);
  }
  return nullptr;
}

HostTensor allocate_landing(PassRecorder& recorder, DType dtype, int64_t rows, int heads, int dim) {
  HostTensor tensor = recorder.allocate(dtype, rows, heads, dim);
  if (Env::get().sanity_check) tensor.fill(std::numeric_limits<float>::quiet_NaN());
  return tensor;
}

}  // namespace tangram
