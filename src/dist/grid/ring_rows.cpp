// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ring attention (arXiv 2310.01889) and its double ring (LoongTrain, arXiv 2406.18485): a K/V block computes here while
// the next one comes; backward, the gradients of a block follow it round the ring and end at its owner.
#include <fmt/format.h>

#include "core/require.hpp"
#include "dist/grid/row_attention.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

/// All rows to one rank, all rows from one rank.
Exchange whole_block(int target, int source, int64_t rows) {
  return {{{target, {0, rows}, 0}}, {{source, {0, rows}, 0}}};
}

class RingRows final : public RowAttention {
 public:
  explicit RingRows(RankContext& context) : RowAttention(context) {}

  void forward(const RowForwardArgs& args) override;
  void backward(const RowBackwardArgs& args) override;

 private:
  struct Block {
    HostTensor k_memory, v_memory;
    ConstTensorView k, v;
  };
  struct Blocks {
    std::vector<Block> of_step;
    std::vector<std::unique_ptr<CommHandle>> arriving;  // last: waited for before any block is freed

    Block& operator[](size_t step) { return of_step[step]; }
    size_t size() const { return of_step.size(); }
  };

  Blocks start(const ConstTensorView& k, const ConstTensorView& v) const;
  // Waits for the block of a step, drops those that no step or neighbour needs any more, and sends for later ones.
  void advance(Blocks& blocks, size_t step);
  void send_for(Blocks& blocks, size_t step);
};

RingRows::Blocks RingRows::start(const ConstTensorView& k, const ConstTensorView& v) const {
  Blocks blocks;
  blocks.of_step.resize(steps().size());
  blocks.arriving.resize(steps().size());
  blocks[0].k = k;
  blocks[0].v = v;
  return blocks;
}

void RingRows::send_for(Blocks& blocks, size_t step) {
  const GridStep& plan = steps()[step];
  const Block& held = blocks[static_cast<size_t>(plan.posted)];
  Block& next = blocks[step];
  next.k_memory = allocate(held.k.dtype, held.k.rows, held.k);
  next.v_memory = allocate(held.v.dtype, held.v.rows, held.v);
  next.k = next.k_memory;
  next.v = next.v_memory;
  const CastTensor tensors[] = {{held.k, next.k_memory}, {held.v, next.v_memory}};
  const Exchange exchange = whole_block(rank_of(plan.target), rank_of(plan.source), held.k.rows);
  blocks.arriving[step] = context_.recorder.timed(TraceKind::kPostCast, static_cast<int>(step), [&] {
    return context_.communicator->group_cast(exchange, tensors, fmt::format("ring kv {}", step));
  });
}

void RingRows::advance(Blocks& blocks, size_t step) {
  if (step > 0) {
    context_.recorder.wait(*blocks.arriving[step], TraceKind::kWaitCast, TraceKind::kTransferCast,
                           static_cast<int>(step));
    const size_t sent = static_cast<size_t>(steps()[step].posted);
    // The first block of an inner round is sent twice: to the neighbour, and later over the outer ring.
    bool needed = false;
    for (size_t s = step + 1; s < blocks.size(); ++s) needed = needed || static_cast<size_t>(steps()[s].posted) == sent;
    if (!needed) blocks[sent] = Block();
  }
  for (size_t s = step + 1; s < blocks.size(); ++s) {
    if (static_cast<size_t>(steps()[s].posted) == step) send_for(blocks, s);
  }
}

void RingRows::forward(const RowForwardArgs& args) {
  const auto& prepared = steps_for(args.attn.k.heads);
  size_t last = 0;
  for (size_t s = 0; s < prepared.size(); ++s) last = prepared[s] != nullptr ? s : last;
  HostTensor sum;
  if (last > 0 && args.attn.out.dtype != DType::kFloat32) {
    sum = allocate(DType::kFloat32, args.attn.out.rows, args.attn.out);
  }
  Blocks blocks = start(args.attn.k, args.attn.v);
  for (size_t s = 0; s < blocks.size(); ++s) {
    advance(blocks, s);
    if (prepared[s] == nullptr) continue;
    AttnForwardArgs call = args.attn;
    call.k = blocks[s].k;
    call.v = blocks[s].v;
    if (sum.bytes() > 0) call.out = sum;
    if (s != last) call.sink = {};
    call.accumulate = s > 0;
    context_.compute(args.stage + static_cast<int>(s), [&] { context_.backend->forward(*prepared[s], call); });
  }
  if (sum.bytes() > 0) convert_rows(sum, args.attn.out);
}

void RingRows::backward(const RowBackwardArgs& args) {
  const auto& prepared = steps_for(args.attn.k.heads);
  const DType travel_dtype = context_.plan->config.reduce_dtype;
  const ConstTensorView k = args.attn.k, v = args.attn.v;
  HostTensor sum;
  if (args.attn.dq.dtype != DType::kFloat32) sum = allocate(DType::kFloat32, args.attn.dq.rows, args.attn.dq);
  HostTensor dk = allocate(DType::kFloat32, k.rows, k), dv = allocate(DType::kFloat32, v.rows, v);
  // Two of each: while the gradients of a step are under way, those of the next are made.
  HostTensor sent[2][2], come[2][2];
  for (int i = 0; i < 2; ++i) {
    sent[i][0] = allocate(travel_dtype, k.rows, k);
    sent[i][1] = allocate(travel_dtype, v.rows, v);
    come[i][0] = allocate(travel_dtype, k.rows, k);
    come[i][1] = allocate(travel_dtype, v.rows, v);
  }
  std::unique_ptr<CommHandle> grads;
  Blocks blocks = start(k, v);
  for (size_t s = 0; s < blocks.size(); ++s) {
    const int step_idx = static_cast<int>(s);
    advance(blocks, s);
    if (prepared[s] != nullptr) {
      AttnBackwardArgs call = args.attn;
      call.k = blocks[s].k;
      call.v = blocks[s].v;
      if (sum.bytes() > 0) call.dq = sum;
      call.dk = dk;
      call.dv = dv;
      call.accumulate_dq = s > 0;
      if (s > 0) {  // dsink depends on no keys: the first call gives all of it
        call.sink = {};
        call.dsink = nullptr;
      }
      context_.compute(args.stage + step_idx, [&] { context_.backend->backward(*prepared[s], call); });
    } else {
      dk.fill(0);
      dv.fill(0);
    }
    const size_t turn = s % 2;
    ConstTensorView before[2];
    if (s > 0) {
      context_.recorder.wait(*grads, TraceKind::kWaitReduce, TraceKind::kTransferReduce, step_idx - 1);
      before[0] = come[1 - turn][0];
      before[1] = come[1 - turn][1];
    }
    convert_rows(dk, sent[turn][0], s > 0 ? &before[0] : nullptr);
    convert_rows(dv, sent[turn][1], s > 0 ? &before[1] : nullptr);
    const CastTensor tensors[] = {{sent[turn][0], come[turn][0]}, {sent[turn][1], come[turn][1]}};
    const GridStep& plan = steps()[s];
    grads = context_.recorder.timed(TraceKind::kPostReduce, step_idx, [&] {
      return context_.communicator->group_cast(
          whole_block(rank_of(plan.grad_target), rank_of(plan.grad_source), k.rows), tensors,
          fmt::format("ring dkv {}", s));
    });
  }
  if (sum.bytes() > 0) convert_rows(sum, args.attn.dq);
  const size_t final_turn = (blocks.size() - 1) % 2;
  context_.recorder.wait(*grads, TraceKind::kWaitReduce, TraceKind::kTransferReduce,
                         static_cast<int>(blocks.size()) - 1);
  convert_rows(come[final_turn][0], args.attn.dk);
  convert_rows(come[final_turn][1], args.attn.dv);
}

}  // namespace

std::unique_ptr<RowAttention> make_ring_rows(RankContext& context) { return std::make_unique<RingRows>(context); }

}  // namespace tangram
