// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "measured_passes.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "attn/sm90/sm90_backend.hpp"
#include "cuda/check.hpp"
#include "dist/program/grid_program.hpp"
#include "random_values.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double largest(Communicator& control, double value) {
  float shared = static_cast<float>(value);
  control.all_reduce({&shared, 1}, ReduceOp::kMax, "largest");
  return shared;
}

class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Seconds on the device between two points of a stream.
class Stopwatch {
 public:
  Stopwatch() {
    cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Stopwatch(const Stopwatch&) = delete;
  void start(cudaStream_t stream) { cuda::check(cudaEventRecord(begin_, stream), "cudaEventRecord"); }
  double stop(cudaStream_t stream) {
    cuda::check(cudaEventRecord(end_, stream), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

/// Work captured on a stream, to be replayed on it.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    work();
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(graph_)); }
  Graph(const Graph&) = delete;
  void replay() const { cuda::check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

int calls_in(double seconds, double once_s, const Repeats& repeats) {
  return std::min(static_cast<int>(seconds / once_s), repeats.most);
}

int measured_calls(double once_s, const Repeats& repeats) {
  return std::max(calls_in(repeats.seconds, once_s, repeats), repeats.least);
}

/// Rank 0 alone in a group of its own, as measure_calls sees it.
double measure_alone(cudaStream_t stream, const Repeats& repeats, const std::function<void()>& call) {
  Stopwatch watch;
  call();
  watch.start(stream);
  call();
  const double once_s = watch.stop(stream);
  if (once_s > repeats.seconds) return once_s;
  for (int i = calls_in(repeats.warm_s, once_s, repeats); i > 0; --i) call();
  const int count = measured_calls(once_s, repeats);
  watch.start(stream);
  for (int i = 0; i < count; ++i) call();
  return watch.stop(stream) / count;
}

}  // namespace

TensorView Operands::add(int64_t rows, int heads, int dim, uint64_t seed) {
  memory_.emplace_back(static_cast<size_t>(rows * heads * dim) * 2);
  void* data = memory_.back().as<void>();
  fill_random_bf16(data, rows * heads * dim, seed, nullptr);
  return {{data, DType::kBFloat16, rows, heads, dim, int64_t{heads} * dim, dim}};
}

Operands::Operands(int64_t q_rows, int64_t k_rows, const HeadConfig& heads, uint64_t seed) {
  q = add(q_rows, heads.num_heads_q, heads.head_dim, seed * 8);
  k = add(k_rows, heads.num_heads_kv, heads.head_dim, seed * 8 + 1);
  v = add(k_rows, heads.num_heads_kv, heads.head_dim_v, seed * 8 + 2);
  dout = add(q_rows, heads.num_heads_q, heads.head_dim_v, seed * 8 + 3);
  out = add(q_rows, heads.num_heads_q, heads.head_dim_v, 0);
  dq = add(q_rows, heads.num_heads_q, heads.head_dim, 0);
  dk = add(k_rows, heads.num_heads_kv, heads.head_dim, 0);
  dv = add(k_rows, heads.num_heads_kv, heads.head_dim_v, 0);
  memory_.emplace_back(static_cast<size_t>(q_rows * heads.num_heads_q) * sizeof(float));
  lse = memory_.back().as<float>();
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

CallTime measure_calls(Communicator& control, cudaStream_t stream, const Repeats& repeats,
                       const std::function<void()>& call) {
  Stopwatch watch;
  control.barrier("warm up");
  call();
  watch.start(stream);
  const Clock::time_point once = Clock::now();
  call();
  const double once_host_s = seconds_since(once);
  const double once_s = largest(control, watch.stop(stream));
  if (once_s > repeats.seconds) return {once_s, largest(control, once_host_s)};
  std::vector<double> host_s;
  const auto timed_call = [&] {
    const Clock::time_point begin = Clock::now();
    call();
    host_s.push_back(seconds_since(begin));
  };
  for (int i = calls_in(repeats.warm_s, once_s, repeats); i > 0; --i) timed_call();
  const int count = measured_calls(once_s, repeats);
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // the host must not find a full queue
  control.barrier("measure");
  watch.start(stream);
  for (int i = 0; i < count; ++i) timed_call();
  const double device_s = watch.stop(stream);
  // The median: a host that other programs interrupt for a millisecond says nothing about a call. Those that warm up
  // count, too: of the few calls of a long pass half would be the first after the host has slept.
  const auto median = host_s.begin() + std::ssize(host_s) / 2;
  std::nth_element(host_s.begin(), median, host_s.end());
  return {largest(control, device_s / count), largest(control, *median)};
}

SingleTimes measure_single(Communicator& control, const Mask& mask, const HeadConfig& heads, const Repeats& repeats) {
  const Sm90Backend backend;
  FlexAttention attention(mask, heads, backend);
  const Operands on(mask.seqlen_q(), mask.seqlen_k(), heads, 1);
  const Stream stream;
  const auto forward = [&] {
    attention.forward({.q = on.q, .k = on.k, .v = on.v, .out = on.out, .lse = on.lse}, stream);
  };
  const auto backward = [&] {
    attention.backward({.q = on.q,
                        .k = on.k,
                        .v = on.v,
                        .out = on.out,
                        .lse = on.lse,
                        .dout = on.dout,
                        .dq = on.dq,
                        .dk = on.dk,
                        .dv = on.dv},
                       stream);
  };
  float seconds[] = {0, 0};
  if (control.rank() == 0) {
    seconds[0] = static_cast<float>(measure_alone(stream, repeats, forward));
    seconds[1] = static_cast<float>(measure_alone(stream, repeats, backward));
  }
  control.all_reduce(seconds, ReduceOp::kSum, "single GPU");
  return {{{seconds[0], 0}, {seconds[1], 0}},
          {measure_calls(control, stream, repeats, forward), measure_calls(control, stream, repeats, backward)}};
}

PassTimes measure_attention(Communicator& control, const Plan& plan, const Repeats& repeats) {
  PassTimes times;
  if (plan.grid.row_move != RowMove::kNone || plan.grid.empty()) return times;
  const Sm90Backend backend;
  const Stream stream;
  for (const GridMask& mask : grid_masks(plan, control.rank())) {  // one for each number of heads in a chunk
    HeadConfig heads = plan.config.heads;
    heads.num_heads_q = mask.shape.num_heads_q;
    heads.num_heads_kv = mask.shape.num_heads_kv;
    const auto prepared = prepare_slices(backend, mask.slices, mask.shape);
    const Operands on(mask.shape.seqlen_q, mask.shape.seqlen_k, heads, 1);
    AttnForwardArgs forward;
    forward.q = on.q;
    forward.k = on.k;
    forward.v = on.v;
    forward.out = on.out;
    forward.lse = on.lse;
    AttnBackwardArgs backward;
    backward.q = on.q;
    backward.k = on.k;
    backward.v = on.v;
    backward.out = on.out;
    backward.lse = on.lse;
    backward.dout = on.dout;
    backward.dq = on.dq;
    backward.dk = on.dk;
    backward.dv = on.dv;
    const auto& chunks = plan.grid.head_chunks;
    const auto num_calls = static_cast<double>(std::count(chunks.begin(), chunks.end(), mask.shape.num_heads_kv));
    const auto measure = [&](const std::function<void()>& call) {
      return num_calls * measure_calls(control, stream, repeats, call).device_s;
    };
    times.forward.device_s += measure([&] { backend.forward(*prepared, forward, stream); });
    times.backward.device_s += measure([&] { backend.backward(*prepared, backward, stream); });
  }
  return times;
}

namespace {

/// Both passes of one rank over operands of their own.
class Passes {
 public:
  Passes(DeviceCommunicator& communicator, DeviceDistAttention& attention, bool keeps)
      : attention_(attention),
        keeps_(keeps),
        on_(attention.q_rows(), attention.k_rows(), attention.plan().config.heads,
            static_cast<uint64_t>(communicator.rank()) + 2) {}

  const Stream& stream() const { return stream_; }
  void forward() {
    attention_.forward({.q = on_.q, .k = on_.k, .v = on_.v, .out = on_.out, .lse = on_.lse, .kept = kept()}, stream_);
  }
  void backward() {
    attention_.backward({.q = on_.q,
                         .k = on_.k,
                         .v = on_.v,
                         .out = on_.out,
                         .lse = on_.lse,
                         .dout = on_.dout,
                         .dq = on_.dq,
                         .dk = on_.dk,
                         .dv = on_.dv,
                         .kept = kept()},
                        stream_);
  }

 private:
  KeptKv* kept() { return keeps_ ? &kept_ : nullptr; }

  DeviceDistAttention& attention_;
  bool keeps_;
  Operands on_;
  Stream stream_;
  KeptKv kept_;
};

}  // namespace

PassTimes measure_distributed(DeviceCommunicator& communicator, DeviceDistAttention& attention, bool keeps,
                              bool as_graph, const Repeats& repeats) {
  Passes passes(communicator, attention, keeps);
  const Stream& stream = passes.stream();
  Communicator& control = communicator.control();
  const auto measure = [&](const std::function<void()>& call) {
    if (!as_graph) return measure_calls(control, stream, repeats, call);
    call();  // first use allocates
    stream.wait();
    const Graph graph(stream, call);
    const CallTime time = measure_calls(control, stream, repeats, [&] { graph.replay(); });
    stream.wait();
    return time;
  };
  PassTimes times;
  if (keeps) {  // a kept slot goes from one pass to the next
    times.forward = measure([&] {
      passes.forward();
      passes.backward();
    });
  } else {
    times.forward = measure([&] { passes.forward(); });
    times.backward = measure([&] { passes.backward(); });
  }
  stream.wait();
  communicator.check();
  return times;
}

std::vector<DeviceActivity> trace_distributed(DeviceCommunicator& communicator, DeviceDistAttention& attention,
                                              bool keeps, DeviceTrace& trace) {
  Passes passes(communicator, attention, keeps);
  Communicator& control = communicator.control();
  trace.start();
  for (int i = 0; i < 2; ++i) {
    control.barrier("trace forward");
    passes.forward();
    passes.stream().wait();
    control.barrier("trace backward");
    passes.backward();
    passes.stream().wait();
  }
  communicator.check();
  return trace.stop();
}

}  // namespace tangram::bench
