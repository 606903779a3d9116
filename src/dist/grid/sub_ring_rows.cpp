// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HybridCP: each rank computes what its shard holds of both sides of the mask, then the rings of all sub-groups turn at
// once. The rows of the next turn come while one computes; backward, gradients follow their rows and then go home.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/row_moves.hpp"
#include "core/require.hpp"
#include "dist/grid/row_attention.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

/// K and V, or their gradients.
struct RowPair {
  HostTensor k, v;
};

class SubRingRows final : public RowAttention {
 public:
  explicit SubRingRows(RankContext& context) : RowAttention(context) {}

  void forward(const RowForwardArgs& args) override;
  void backward(const RowBackwardArgs& args) override;

 private:
  /// Rows on their way to this rank's next step, and those that they are sent from.
  struct Arriving {
    RowPair rows;
    std::vector<std::unique_ptr<CommHandle>> handles;  // last: waited for before the rows are freed
  };
  /// Gradients of one step: under way to the next holder, or home.
  struct Leaving {
    RowPair sent, onward, home;
    std::unique_ptr<CommHandle> onward_handle, home_handle;
  };

  /// Whether gradients of some ranks go home after this step. The same on every rank.
  bool ends_ring(size_t step) const {
    const std::vector<SubGroupLevel>& levels = context_.plan->grid.levels;
    return std::any_of(levels.begin(), levels.end(),
                       [step](const SubGroupLevel& level) { return level.ranks == static_cast<int>(step) + 1; });
  }
  const SubRingStep& turn(size_t step) const { return steps()[step].sub_rings; }
  RowPair pair_of(DType dtype, int64_t rows, const ConstTensorView& k, const ConstTensorView& v) {
    return {allocate(dtype, rows, k), allocate(dtype, rows, v)};
  }
  /// Sends for the rows of `step`; `k` and `v` are what this rank held before: its shard, or the rows of a turn.
  Arriving send_for(size_t step, const ConstTensorView& k, const ConstTensorView& v);
  void wait_for(Arriving& arriving, size_t step);
  Leaving send_grads(size_t step, const RowPair& grads, const RowPair* before, const RowBackwardArgs& args);
  /// Adds what has come home after `step` into the gradients of the shard.
  void finish_grads(Leaving& leaving, size_t step, RowPair& own);
  std::unique_ptr<CommHandle> cast(const Exchange& exchange, const RowPair& from, RowPair& to, size_t step,
                                   const char* label);
};

SubRingRows::Arriving SubRingRows::send_for(size_t step, const ConstTensorView& k, const ConstTensorView& v) {
  Arriving arriving;
  arriving.rows = pair_of(k.dtype, turn(step).rows, k, v);
  const CastTensor tensors[] = {{k, arriving.rows.k}, {v, arriving.rows.v}};
  for (const Exchange& exchange : turn(step).casts) {
    arriving.handles.push_back(context_.recorder.timed(TraceKind::kPostCast, static_cast<int>(step), [&] {
      return context_.communicator->group_cast(exchange, tensors, fmt::format("sub-ring kv {}", step));
    }));
  }
  return arriving;
}

void SubRingRows::wait_for(Arriving& arriving, size_t step) {
  for (const auto& handle : arriving.handles) {
    context_.recorder.wait(*handle, TraceKind::kWaitCast, TraceKind::kTransferCast, static_cast<int>(step));
  }
  arriving.handles.clear();
}

void SubRingRows::forward(const RowForwardArgs& args) {
  const auto& prepared = steps_for(args.attn.k.heads);
  size_t last = 0;
  for (size_t s = 0; s < prepared.size(); ++s) last = prepared[s] != nullptr ? s : last;
  HostTensor sum;
  if (last > 0 && args.attn.out.dtype != DType::kFloat32) {
    sum = allocate(DType::kFloat32, args.attn.out.rows, args.attn.out);
  }
  ConstTensorView k = args.attn.k, v = args.attn.v;
  Arriving held, next;
  for (size_t s = 0; s < prepared.size(); ++s) {
    if (s > 0) {
      wait_for(next, s);
      held = std::move(next);
      k = held.rows.k;
      v = held.rows.v;
    }
    if (s + 1 < prepared.size()) next = send_for(s + 1, k, v);
    if (prepared[s] == nullptr) continue;
    AttnForwardArgs call = args.attn;
    call.k = k;
    call.v = v;
    if (sum.bytes() > 0) call.out = sum;
    if (s != last) call.sink = {};
    call.accumulate = s > 0;
    context_.compute(static_cast<int>(s), [&] { context_.backend->forward(*prepared[s], call); });
  }
  if (sum.bytes() > 0) convert_rows(sum, args.attn.out);
}

std::unique_ptr<CommHandle> SubRingRows::cast(const Exchange& exchange, const RowPair& from, RowPair& to, size_t step,
                                              const char* label) {
  const CastTensor tensors[] = {{from.k, to.k}, {from.v, to.v}};
  return context_.recorder.timed(TraceKind::kPostReduce, static_cast<int>(step), [&] {
    return context_.communicator->group_cast(exchange, tensors, fmt::format("{} {}", label, step));
  });
}

SubRingRows::Leaving SubRingRows::send_grads(size_t step, const RowPair& grads, const RowPair* before,
                                             const RowBackwardArgs& args) {
  const DType dtype = context_.plan->config.reduce_dtype;
  const ConstTensorView &k = args.attn.k, &v = args.attn.v;
  Leaving leaving;
  leaving.sent = pair_of(dtype, turn(step).rows, k, v);
  ConstTensorView before_k, before_v;
  if (before != nullptr) {
    before_k = before->k;
    before_v = before->v;
  }
  convert_rows(grads.k, leaving.sent.k, before != nullptr ? &before_k : nullptr);
  convert_rows(grads.v, leaving.sent.v, before != nullptr ? &before_v : nullptr);
  if (step + 1 < steps().size()) {
    TANGRAM_ASSERT(turn(step + 1).casts.size() == 1);
    leaving.onward = pair_of(dtype, turn(step + 1).rows, k, v);
    leaving.onward_handle = cast(turn(step + 1).casts.front(), leaving.sent, leaving.onward, step, "sub-ring dkv");
  }
  if (!ends_ring(step)) return leaving;
  leaving.home = pair_of(dtype, turn(step).home.rows_received(), k, v);
  leaving.home_handle = cast(turn(step).home, leaving.sent, leaving.home, step, "sub-ring dkv home");
  return leaving;
}

void SubRingRows::finish_grads(Leaving& leaving, size_t step, RowPair& own) {
  for (const auto* handle : {&leaving.onward_handle, &leaving.home_handle}) {
    if (*handle == nullptr) continue;
    context_.recorder.wait(**handle, TraceKind::kWaitReduce, TraceKind::kTransferReduce, static_cast<int>(step));
  }
  int64_t row = 0;
  for (const Range& rows : turn(step).home_rows) {
    for (const auto& [come, sum] : {std::pair(&leaving.home.k, &own.k), std::pair(&leaving.home.v, &own.v)}) {
      const TensorView target = slice_rows(sum->view(), rows);
      const ConstTensorView more = slice_rows(come->view(), {row, row + rows.size()});
      convert_rows(target, target, &more);
    }
    row += rows.size();
  }
}

void SubRingRows::backward(const RowBackwardArgs& args) {
  const auto& prepared = steps_for(args.attn.k.heads);
  HostTensor sum;
  if (args.attn.dq.dtype != DType::kFloat32) sum = allocate(DType::kFloat32, args.attn.dq.rows, args.attn.dq);
  RowPair own = pair_of(DType::kFloat32, args.attn.k.rows, args.attn.k, args.attn.v);
  ConstTensorView k = args.attn.k, v = args.attn.v;
  Arriving held, next;
  Leaving leaving;
  for (size_t s = 0; s < prepared.size(); ++s) {
    if (s > 0) {
      wait_for(next, s);
      held = std::move(next);
      k = held.rows.k;
      v = held.rows.v;
    }
    if (s + 1 < prepared.size()) next = send_for(s + 1, k, v);
    RowPair of_turn;
    if (s > 0) of_turn = pair_of(DType::kFloat32, turn(s).rows, k, v);
    RowPair& grads = s == 0 ? own : of_turn;
    if (prepared[s] != nullptr) {
      AttnBackwardArgs call = args.attn;
      call.k = k;
      call.v = v;
      if (sum.bytes() > 0) call.dq = sum;
      call.dk = grads.k;
      call.dv = grads.v;
      call.accumulate_dq = s > 0;
      if (s > 0) {  // dsink depends on no keys: the first call gives all of it
        call.sink = {};
        call.dsink = nullptr;
      }
      context_.compute(static_cast<int>(s), [&] { context_.backend->backward(*prepared[s], call); });
    } else {
      grads.k.fill(0);
      grads.v.fill(0);
    }
    if (s == 0) continue;
    if (s > 1) finish_grads(leaving, s - 1, own);
    Leaving sent = send_grads(s, grads, s > 1 ? &leaving.onward : nullptr, args);
    leaving = std::move(sent);
  }
  if (sum.bytes() > 0) convert_rows(sum, args.attn.dq);
  if (steps().size() > 1) finish_grads(leaving, steps().size() - 1, own);
  convert_rows(own.k, args.attn.dk);
  convert_rows(own.v, args.attn.dv);
}

}  // namespace

std::unique_ptr<RowAttention> make_sub_ring_rows(RankContext& context) {
  return std::make_unique<SubRingRows>(context);
}

}  // namespace tangram
