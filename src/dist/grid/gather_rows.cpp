// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Context parallelism by all-gather: every row group gathers all K/V blocks, in global order, while it computes with
// its own; backward, dk and dv are reduce-scattered while it computes with its own.
#include "core/require.hpp"
#include "dist/grid/row_attention.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

class GatherRows final : public RowAttention {
 public:
  explicit GatherRows(RankContext& context);

  void forward(const RowForwardArgs& args) override;
  void backward(const RowBackwardArgs& args) override;

 private:
  std::unique_ptr<CommHandle> gather(const ConstTensorView& k, const ConstTensorView& v);
  void wait_for(CommHandle& gathering);

  Exchange exchange_;  // blocks to whole K/V
  HostTensor k_, v_;   // of the pass under way
};

// The rows of a block and where they lie in the sequence.
std::vector<Range> rows_of_group(const Plan& plan, int group) {
  const Dispatch& dispatch = plan.k_dispatch;
  std::vector<Range> rows;
  for (int64_t c = 0; c < dispatch.num_chunks(); ++c) {
    if (dispatch.rank_of_chunk[static_cast<size_t>(c)] / plan.grid.head_ranks != group) continue;
    rows.push_back({c * dispatch.chunk_size, (c + 1) * dispatch.chunk_size});
  }
  return rows;
}

GatherRows::GatherRows(RankContext& context) : RowAttention(context) {
  const Plan& plan = *context.plan;
  for (int group = 0; group < plan.grid.row_groups; ++group) {
    if (group == group_) continue;
    int64_t row = 0;
    for (const Range& rows : rows_of_group(plan, group_)) {
      exchange_.sends.push_back({rank_of(group), {row, row + rows.size()}, rows.begin});
      row += rows.size();
    }
    row = 0;
    for (const Range& rows : rows_of_group(plan, group)) {
      exchange_.recvs.push_back({rank_of(group), rows, row});
      row += rows.size();
    }
  }
}

std::unique_ptr<CommHandle> GatherRows::gather(const ConstTensorView& k, const ConstTensorView& v) {
  const int64_t rows = context_.plan->mask.seqlen_k();
  k_ = allocate(k.dtype, rows, k);
  v_ = allocate(v.dtype, rows, v);
  const CastTensor tensors[] = {{k, k_}, {v, v_}};
  return context_.recorder.timed(TraceKind::kPostCast, 1,
                                 [&] { return context_.communicator->group_cast(exchange_, tensors, "gather kv"); });
}

void GatherRows::wait_for(CommHandle& gathering) {
  context_.recorder.wait(gathering, TraceKind::kWaitCast, TraceKind::kTransferCast, 1);
}

void GatherRows::forward(const RowForwardArgs& args) {
  const auto& prepared = steps_for(args.attn.k.heads);
  const bool has_others = prepared[1] != nullptr;
  const auto gathering = gather(args.attn.k, args.attn.v);
  HostTensor sum;
  AttnForwardArgs call = args.attn;
  if (has_others) {
    call.sink = {};
    if (call.out.dtype != DType::kFloat32) {
      sum = allocate(DType::kFloat32, call.out.rows, call.out);
      call.out = sum;
    }
  }
  context_.compute(0, [&] { context_.backend->forward(*prepared[0], call); });
  wait_for(*gathering);
  if (has_others) {
    call.k = k_;
    call.v = v_;
    call.sink = args.attn.sink;
    call.accumulate = true;
    context_.compute(1, [&] { context_.backend->forward(*prepared[1], call); });
  }
  if (sum.bytes() > 0) convert_rows(sum, args.attn.out);
  k_ = HostTensor();
  v_ = HostTensor();
}

void GatherRows::backward(const RowBackwardArgs& args) {
  const auto& prepared = steps_for(args.attn.k.heads);
  const DType travel_dtype = context_.plan->config.reduce_dtype;
  const bool converts = travel_dtype != DType::kFloat32;
  const auto gathering = gather(args.attn.k, args.attn.v);
  HostTensor sum;
  if (args.attn.dq.dtype != DType::kFloat32) sum = allocate(DType::kFloat32, args.attn.dq.rows, args.attn.dq);
  // Zero where nothing is computed: what nobody here sees is sent all the same.
  HostTensor dk = allocate(DType::kFloat32, k_.rows(), k_.view()), dv = allocate(DType::kFloat32, v_.rows(), v_.view());
  HostTensor own_dk = allocate(DType::kFloat32, block_rows(), args.attn.k);
  HostTensor own_dv = allocate(DType::kFloat32, block_rows(), args.attn.v);
  dk.fill(0);
  dv.fill(0);

  AttnBackwardArgs call = args.attn;
  if (sum.bytes() > 0) call.dq = sum;
  call.dk = own_dk;
  call.dv = own_dv;
  context_.compute(0, [&] { context_.backend->backward(*prepared[0], call); });
  wait_for(*gathering);
  if (prepared[1] != nullptr) {
    call.k = k_;
    call.v = v_;
    call.dk = dk;
    call.dv = dv;
    call.sink = {};
    call.dsink = nullptr;
    call.accumulate_dq = true;
    context_.compute(1, [&] { context_.backend->backward(*prepared[1], call); });
  }
  HostTensor sent_dk, sent_dv, sum_dk, sum_dv;
  if (converts) {
    const auto converted = [&](const HostTensor& from) {
      HostTensor to = allocate(travel_dtype, from.rows(), from.view());
      convert_rows(from, to);
      return to;
    };
    sent_dk = converted(dk);
    sent_dv = converted(dv);
    sum_dk = converted(own_dk);
    sum_dv = converted(own_dv);
  }
  const ReduceTensor tensors[] = {{converts ? sent_dk : dk, converts ? sum_dk : own_dk},
                                  {converts ? sent_dv : dv, converts ? sum_dv : own_dv}};
  const auto reducing = context_.recorder.timed(TraceKind::kPostReduce, 1, [&] {
    return context_.communicator->group_reduce(exchange_, tensors, ReduceOp::kSum, "scatter dkv");
  });
  if (sum.bytes() > 0) convert_rows(sum, args.attn.dq);
  context_.recorder.wait(*reducing, TraceKind::kWaitReduce, TraceKind::kTransferReduce, 1);
  convert_rows(tensors[0].owned, args.attn.dk);
  convert_rows(tensors[1].owned, args.attn.dv);
  k_ = HostTensor();
  v_ = HostTensor();
}

}  // namespace

std::unique_ptr<RowAttention> make_gather_rows(RankContext& context) { return std::make_unique<GatherRows>(context); }

}  // namespace tangram
