// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/grid/grid_attention.hpp"

#include <algorithm>
#include <limits>

#include "core/require.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

ConstTensorView lse_view(const float* lse, int64_t rows, int heads) {
  return {lse, DType::kFloat32, rows, heads, 1, heads, 1};
}

TensorView lse_view(float* lse, int64_t rows, int heads) { return {{lse, DType::kFloat32, rows, heads, 1, heads, 1}}; }

bool is_of_rows(const Sink& sink) { return !sink.empty() && sink.layout == SinkLayout::kSsh; }

// [rows, outer, inner] to [rows, inner, outer].
void swap_inner(const float* from, int64_t rows, int outer, int inner, float* to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int i = 0; i < outer; ++i) {
      for (int j = 0; j < inner; ++j) to[j * outer + i] = from[i * inner + j];
    }
    from += outer * inner;
    to += outer * inner;
  }
}

}  // namespace

size_t kept_tensors_of_chunk(const Sink& sink) { return is_of_rows(sink) ? 6 : 5; }

/// One chunk of heads on its way through a pass.
struct GridAttention::ChunkState {
  HostTensor q, k, v, out, lse, sinks;
  HostTensor dq, dk, dv, dsinks;
  HostTensor sent_dk, sent_dv;  // copies of shared heads in reduce_dtype
  // Last: destroyed, and so waited for, before the memory that they use.
  HeadExchange::Exchanged q_in, kv_in, q_back, kv_back;
};

GridAttention::GridAttention(RankContext& context) : context_(context), rows_(make_row_attention(context)) {
  const Plan& plan = *context.plan;
  const GridPlan& grid = plan.grid;
  if (grid.head_ranks == 1) return;
  const HeadConfig& heads = plan.config.heads;
  q_exchange_ = std::make_unique<HeadExchange>(context, plan.q_dispatch, heads.num_heads_q);
  kv_exchange_ = std::make_unique<HeadExchange>(context, plan.k_dispatch, heads.num_heads_kv);
  const int per_kv = heads.num_heads_q / grid.head_ranks / std::max(1, heads.num_heads_kv / grid.head_ranks);
  int first = 0;
  for (const int count : grid.head_chunks) {
    chunks_.push_back({{first * per_kv, count * per_kv}, {first, count}});
    first += count;
  }
}

void GridAttention::wait(HeadExchange::Exchanged& exchanged, size_t chunk, bool inputs) {
  context_.recorder.wait(*exchanged.handle, inputs ? TraceKind::kWaitCast : TraceKind::kWaitReduce,
                         inputs ? TraceKind::kTransferCast : TraceKind::kTransferReduce, static_cast<int>(chunk));
  if (inputs) exchanged.packed.clear();
}

int GridAttention::first_q_head(size_t chunk) const { return q_exchange_->first_head() + chunks_[chunk].q.first; }

HostTensor GridAttention::sink_by_heads(const Sink& sink, int64_t rows) const {
  if (!is_of_rows(sink)) return {};
  const int heads = context_.plan->config.heads.num_heads_q, num_sinks = static_cast<int>(sink.seqlen_sink);
  HostTensor result(DType::kFloat32, rows, heads, num_sinks);
  swap_inner(sink.data, rows, num_sinks, heads, result.data<float>());
  return result;
}

std::vector<float> GridAttention::sink_of(const Sink& sink, size_t chunk, const ConstTensorView& of_rows) const {
  const int all = context_.plan->config.heads.num_heads_q;
  std::vector<float> result;
  if (is_of_rows(sink)) {
    result.resize(static_cast<size_t>(of_rows.rows * of_rows.heads * of_rows.dim));
    swap_inner(static_cast<const float*>(of_rows.data), of_rows.rows, of_rows.heads, of_rows.dim, result.data());
    return result;
  }
  for (int64_t i = 0; i < sink.seqlen_sink; ++i) {
    const float* first = sink.data + i * all + first_q_head(chunk);
    result.insert(result.end(), first, first + chunks_[chunk].q.count);
  }
  return result;
}

void GridAttention::send_for_forward(const DistForwardArgs& args, const HostTensor& sinks, size_t chunk,
                                     ChunkState& state) {
  const int stage = static_cast<int>(chunk);
  std::vector<ConstTensorView> of_queries = {args.q};
  if (is_of_rows(args.sink)) of_queries.push_back(sinks);
  state.q_in = q_exchange_->to_heads(of_queries, chunks_[chunk].q, stage, "q");
  state.kv_in = kv_exchange_->to_heads({args.k, args.v}, chunks_[chunk].kv, stage, "kv");
}

void GridAttention::forward(const DistForwardArgs& args) {
  context_.recorder.begin(AttnPass::kForward);
  if (args.kept != nullptr) *args.kept = {};
  if (q_exchange_ != nullptr) {
    forward_by_heads(args);
  } else {
    rows_->forward({{args.q, args.k, args.v, args.out, args.lse, args.max_logits, args.sink, false, args.options}, 0});
  }
  reduce_max_logits(context_, args);
}

void GridAttention::forward_by_heads(const DistForwardArgs& args) {
  if (args.max_logits != nullptr) {
    std::fill_n(args.max_logits, args.q.heads, -std::numeric_limits<float>::infinity());
  }
  const HostTensor sinks = sink_by_heads(args.sink, args.q.rows);
  std::vector<ChunkState> states(chunks_.size());
  send_for_forward(args, sinks, 0, states[0]);
  for (size_t c = 0; c < chunks_.size(); ++c) {
    ChunkState& state = states[c];
    wait(state.q_in, c, true);
    wait(state.kv_in, c, true);
    if (c + 1 < chunks_.size()) send_for_forward(args, sinks, c + 1, states[c + 1]);
    state.q = std::move(state.q_in.tensors[0]);
    if (is_of_rows(args.sink)) state.sinks = std::move(state.q_in.tensors[1]);
    state.k = std::move(state.kv_in.tensors[0]);
    state.v = std::move(state.kv_in.tensors[1]);
    const int heads = chunks_[c].q.count;
    state.out = context_.recorder.allocate(args.out.dtype, state.q.rows(), heads, args.out.dim);
    state.lse = context_.recorder.allocate(DType::kFloat32, state.q.rows(), heads, 1);
    const std::vector<float> sink = sink_of(args.sink, c, state.sinks);
    float* const max_logits = args.max_logits == nullptr ? nullptr : args.max_logits + first_q_head(c);
    rows_->forward({{state.q,
                     state.k,
                     state.v,
                     state.out,
                     state.lse.data<float>(),
                     max_logits,
                     {sink.data(), args.sink.seqlen_sink, args.sink.layout},
                     false,
                     args.options},
                    static_cast<int>(c)});
    state.q_back = q_exchange_->to_rows({state.out.view(), state.lse.view()}, static_cast<int>(c), "out");
  }
  for (size_t c = 0; c < chunks_.size(); ++c) {
    ChunkState& state = states[c];
    wait(state.q_back, c, false);
    q_exchange_->unpack(state.q_back, 0, chunks_[c].q, args.out);
    q_exchange_->unpack(state.q_back, 1, chunks_[c].q, lse_view(args.lse, args.q.rows, args.q.heads));
    if (args.kept == nullptr) continue;
    for (HostTensor* tensor : {&state.q, &state.k, &state.v, &state.out, &state.lse}) {
      args.kept->heads.push_back(std::move(*tensor));
    }
    if (is_of_rows(args.sink)) args.kept->heads.push_back(std::move(state.sinks));
  }
  if (args.kept != nullptr) args.kept->valid = true;
}

void GridAttention::send_for_backward(const DistBackwardArgs& args, const HostTensor& sinks, size_t chunk,
                                      ChunkState& state) {
  const int stage = static_cast<int>(chunk);
  const bool has_kept = args.kept != nullptr && args.kept->valid;
  if (has_kept) {
    state.q_in = q_exchange_->to_heads({args.dout}, chunks_[chunk].q, stage, "dout");
    return;
  }
  std::vector<ConstTensorView> of_queries = {args.dout, args.q, args.out,
                                             lse_view(args.lse, args.q.rows, args.q.heads)};
  if (is_of_rows(args.sink)) of_queries.push_back(sinks);
  state.q_in = q_exchange_->to_heads(of_queries, chunks_[chunk].q, stage, "dout");
  state.kv_in = kv_exchange_->to_heads({args.k, args.v}, chunks_[chunk].kv, stage, "kv");
}

void GridAttention::compute_backward(const DistBackwardArgs& args, size_t chunk, ChunkState& state) {
  PassRecorder& recorder = context_.recorder;
  ConstTensorView q, k, v, out, lse, sinks;
  if (args.kept != nullptr && args.kept->valid) {
    const HostTensor* kept = &args.kept->heads[chunk * kept_tensors_of_chunk(args.sink)];
    q = kept[0];
    k = kept[1];
    v = kept[2];
    out = kept[3];
    lse = kept[4];
    if (is_of_rows(args.sink)) sinks = kept[5];
  } else {
    q = state.q_in.tensors[1].view();
    out = state.q_in.tensors[2].view();
    lse = state.q_in.tensors[3].view();
    if (is_of_rows(args.sink)) sinks = state.q_in.tensors[4].view();
    k = state.kv_in.tensors[0].view();
    v = state.kv_in.tensors[1].view();
  }
  const bool shares = kv_exchange_->shares_heads();
  state.dq = recorder.allocate(args.dq.dtype, q.rows, q.heads, q.dim);
  state.dk = recorder.allocate(shares ? DType::kFloat32 : args.dk.dtype, k.rows, k.heads, k.dim);
  state.dv = recorder.allocate(shares ? DType::kFloat32 : args.dv.dtype, v.rows, v.heads, v.dim);
  const std::vector<float> sink = sink_of(args.sink, chunk, sinks);
  std::vector<float> dsink(sink.size());
  rows_->backward({{q,
                    k,
                    v,
                    out,
                    static_cast<const float*>(lse.data),
                    state.q_in.tensors[0].view(),
                    state.dq,
                    state.dk,
                    state.dv,
                    args.dsink != nullptr ? dsink.data() : nullptr,
                    {sink.data(), args.sink.seqlen_sink, args.sink.layout},
                    false,
                    false,
                    args.options},
                   static_cast<int>(chunk)});
  if (args.dsink == nullptr) return;
  const int count = chunks_[chunk].q.count;
  if (is_of_rows(args.sink)) {
    state.dsinks = recorder.allocate(DType::kFloat32, q.rows, count, static_cast<int>(args.sink.seqlen_sink));
    swap_inner(dsink.data(), q.rows, static_cast<int>(args.sink.seqlen_sink), count, state.dsinks.data<float>());
    return;
  }
  for (int64_t i = 0; i < args.sink.seqlen_sink; ++i) {
    std::copy_n(dsink.data() + i * count, count, args.dsink + i * args.q.heads + first_q_head(chunk));
  }
}

void GridAttention::finish_backward(const DistBackwardArgs& args, HostTensor& dsinks, size_t chunk, ChunkState& state) {
  wait(state.q_back, chunk, false);
  wait(state.kv_back, chunk, false);
  q_exchange_->unpack(state.q_back, 0, chunks_[chunk].q, args.dq);
  if (state.dsinks.bytes() > 0) q_exchange_->unpack(state.q_back, 1, chunks_[chunk].q, dsinks);
  kv_exchange_->unpack(state.kv_back, 0, chunks_[chunk].kv, args.dk);
  kv_exchange_->unpack(state.kv_back, 1, chunks_[chunk].kv, args.dv);
}

void GridAttention::backward(const DistBackwardArgs& args) {
  context_.recorder.begin(AttnPass::kBackward);
  if (q_exchange_ != nullptr) {
    backward_by_heads(args);
  } else {
    rows_->backward({{args.q, args.k, args.v, args.out, args.lse, args.dout, args.dq, args.dk, args.dv, args.dsink,
                      args.sink, false, false, args.options},
                     0});
  }
  reduce_dsink(context_, args);
}

void GridAttention::backward_by_heads(const DistBackwardArgs& args) {
  const bool of_rows = is_of_rows(args.sink);
  if (args.dsink != nullptr && !of_rows) std::fill_n(args.dsink, args.sink.seqlen_sink * args.q.heads, 0.0f);
  const bool has_kept = args.kept != nullptr && args.kept->valid;
  const HostTensor sinks = has_kept ? HostTensor() : sink_by_heads(args.sink, args.q.rows);
  HostTensor dsinks;
  if (args.dsink != nullptr && of_rows) {
    dsinks = HostTensor(DType::kFloat32, args.q.rows, args.q.heads, static_cast<int>(args.sink.seqlen_sink));
  }
  const DType reduce_dtype = context_.plan->config.reduce_dtype;
  const bool converts = kv_exchange_->shares_heads() && reduce_dtype != DType::kFloat32;
  std::vector<ChunkState> states(chunks_.size());
  send_for_backward(args, sinks, 0, states[0]);
  for (size_t c = 0; c < chunks_.size(); ++c) {
    ChunkState& state = states[c];
    const int stage = static_cast<int>(c);
    wait(state.q_in, c, true);
    if (state.kv_in.handle != nullptr) wait(state.kv_in, c, true);
    if (c + 1 < chunks_.size()) send_for_backward(args, sinks, c + 1, states[c + 1]);
    compute_backward(args, c, state);
    state.q_in = HeadExchange::Exchanged();
    state.kv_in = HeadExchange::Exchanged();
    if (converts) {
      state.sent_dk = context_.recorder.allocate(reduce_dtype, state.dk.rows(), state.dk.heads(), state.dk.dim());
      state.sent_dv = context_.recorder.allocate(reduce_dtype, state.dv.rows(), state.dv.heads(), state.dv.dim());
      convert_rows(state.dk, state.sent_dk);
      convert_rows(state.dv, state.sent_dv);
    }
    std::vector<ConstTensorView> of_queries = {state.dq.view()};
    if (state.dsinks.bytes() > 0) of_queries.push_back(state.dsinks);
    state.q_back = q_exchange_->to_rows(of_queries, stage, "dq");
    state.kv_back = kv_exchange_->to_rows(
        {converts ? state.sent_dk.view() : state.dk.view(), converts ? state.sent_dv.view() : state.dv.view()}, stage,
        "dkv");
  }
  for (size_t c = 0; c < chunks_.size(); ++c) finish_backward(args, dsinks, c, states[c]);
  if (dsinks.bytes() == 0) return;
  swap_inner(dsinks.data<float>(), args.q.rows, args.q.heads, static_cast<int>(args.sink.seqlen_sink), args.dsink);
}

}  // namespace tangram
