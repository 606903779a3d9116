// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/rank_context.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "tangram/env.hpp"

namespace tangram {

double steady_now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void PassRecorder::begin(AttnPass pass) {
  pass_ = pass;
  memory_ = {};
  bytes_now_ = 0;
  std::erase_if(events_, [pass](const TraceEvent& event) { return event.pass == pass; });
}

void PassRecorder::wait(CommHandle& handle, TraceKind wait_kind, TraceKind transfer_kind, int stage) {
  timed(wait_kind, stage, [&] { handle.wait(); });
  const CommTimes times = handle.times();
  events_.push_back({transfer_kind, pass_, stage, times.started_s, times.finished_s});
}

HostTensor PassRecorder::allocate(DType dtype, int64_t rows, int heads, int dim) {
  HostTensor tensor(dtype, rows, heads, dim);
  memory_.buffer_bytes += tensor.bytes();
  count(tensor.bytes());
  return tensor;
}

void PassRecorder::release(HostTensor& tensor) {
  bytes_now_ -= tensor.bytes();
  tensor = HostTensor();
}

void PassRecorder::count(int64_t bytes) {
  bytes_now_ += bytes;
  memory_.peak_bytes = std::max(memory_.peak_bytes, bytes_now_);
}

HostTensor PassRecorder::allocate_poisoned(DType dtype, int64_t rows, int heads, int dim) {
  HostTensor tensor = allocate(dtype, rows, heads, dim);
  if (Env::get().sanity_check) tensor.fill(std::numeric_limits<float>::quiet_NaN());
  return tensor;
}

void RankContext::compute(int stage, const std::function<void()>& call) {
  recorder.timed(TraceKind::kCompute, stage, [&] {
    try {
      call();
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
  });
}

void reduce_max_logits(RankContext& context, const DistForwardArgs& args) {
  if (args.max_logits == nullptr || context.communicator->size() == 1) return;
  context.recorder.timed(TraceKind::kAllReduce, 0, [&] {
    context.communicator->all_reduce({args.max_logits, static_cast<size_t>(args.q.heads)}, ReduceOp::kMax,
                                     "max_logits");
  });
}

void reduce_dsink(RankContext& context, const DistBackwardArgs& args) {
  if (!combines_dsink(args) || context.communicator->size() == 1) return;
  const size_t count = static_cast<size_t>(args.sink.seqlen_sink) * static_cast<size_t>(args.q.heads);
  const ReduceOp op = args.dsink_reduce == DsinkReduce::kSum ? ReduceOp::kSum : ReduceOp::kAvg;
  context.recorder.timed(TraceKind::kAllReduce, 0,
                         [&] { context.communicator->all_reduce({args.dsink, count}, op, "dsink"); });
}

}  // namespace tangram
