// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "measured_passes.hpp"

#include <algorithm>

#include "attn/sm90/sm90_backend.hpp"
#include "cuda/check.hpp"
#include "plan/program/emit.hpp"
#include "random_values.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram::bench {

namespace {

constexpr int kPassesInGraph = 2;

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

/// The members that arguments of all kinds of calls share.
template <class Args>
Args forward_args(const Operands& on) {
  Args args;
  args.q = on.q;
  args.k = on.k;
  args.v = on.v;
  args.out = on.out;
  args.lse = on.lse;
  return args;
}
template <class Args>
Args backward_args(const Operands& on) {
  Args args = forward_args<Args>(on);
  args.dout = on.dout;
  args.dq = on.dq;
  args.dk = on.dk;
  args.dv = on.dv;
  return args;
}

class WholeMaskPasses final : public MeasuredPasses {
 public:
  WholeMaskPasses(const Mask& mask, const HeadConfig& heads)
      : attention_(mask, heads, backend_), on_(mask.seqlen_q(), mask.seqlen_k(), heads, 1) {}
  TimedCall forward() override {
    return {[this] { attention_.forward(forward_args<AttnForwardArgs>(on_), stream_); }, stream_};
  }
  TimedCall backward() override {
    return {[this] { attention_.backward(backward_args<AttnBackwardArgs>(on_), stream_); }, stream_};
  }

 private:
  const Sm90Backend backend_;
  FlexAttention attention_;
  const Operands on_;
  const Stream stream_;
};

/// A rank's attention: one mask, or one for each number of heads in a chunk where heads are exchanged.
class AlonePasses final : public MeasuredPasses {
 public:
  AlonePasses(const Plan& plan, int rank) {
    if (plan.grid() == nullptr) {
      const RankPlan& own = plan.ranks()[static_cast<size_t>(rank)];
      const HeadConfig& heads = plan.config.heads;
      add(own.slices,
          {plan.q_dispatch.rows_per_rank(), own.kv_rows, heads.num_heads_q, heads.num_heads_kv, heads.head_dim,
           heads.head_dim_v, heads.dtype},
          1);
      return;
    }
    const auto& chunks = plan.grid()->head_chunks;
    for (const ProgramMask& mask : program_masks(plan, rank, ProgramTarget{})) {
      add(mask.slices, mask.shape, static_cast<int>(std::count(chunks.begin(), chunks.end(), mask.shape.num_heads_kv)));
    }
  }
  TimedCall forward() override {
    return {[this] {
              each([this](const Part& part) {
                backend_.forward(*part.slot, forward_args<AttnForwardArgs>(part.on), stream_);
              });
            },
            stream_};
  }
  TimedCall backward() override {
    return {[this] {
              each([this](const Part& part) {
                backend_.backward(*part.slot, backward_args<AttnBackwardArgs>(part.on), stream_);
              });
            },
            stream_};
  }

 private:
  struct Part {
    std::unique_ptr<MaskSlot> slot;
    Operands on;
    int num_calls;
  };
  void add(std::span<const AttnSlice> slices, const AttnShape& shape, int num_calls) {
    const HeadConfig heads{shape.num_heads_q, shape.num_heads_kv, shape.head_dim, shape.head_dim_v, shape.dtype};
    parts_.push_back(
        {make_mask_slot(backend_, slices, shape), Operands(shape.seqlen_q, shape.seqlen_k, heads, 1), num_calls});
  }
  template <class Call>
  void each(Call call) const {
    for (const Part& part : parts_) {
      for (int i = 0; i < part.num_calls; ++i) call(part);
    }
  }

  const Sm90Backend backend_;
  std::vector<Part> parts_;
  const Stream stream_;
};

/// Both passes of one rank over operands of their own.
class RankPasses {
 public:
  RankPasses(DeviceCommunicator& communicator, DistAttention& attention, bool keeps)
      : attention_(attention),
        keeps_(keeps),
        on_(attention.q_rows(), attention.k_rows(), attention.plan().config.heads,
            static_cast<uint64_t>(communicator.rank()) + 2) {}

  const Stream& stream() const { return stream_; }
  bool keeps() const { return keeps_; }
  void forward() {
    auto args = forward_args<DistForwardArgs>(on_);
    args.kept = kept();
    attention_.forward(args, stream_);
  }
  void backward() {
    auto args = backward_args<DistBackwardArgs>(on_);
    args.kept = kept();
    attention_.backward(args, stream_);
  }
  /// What is timed first: both where the one needs the other.
  void first() {
    forward();
    if (keeps_) backward();
  }

 private:
  KeptKv* kept() { return keeps_ ? &kept_ : nullptr; }

  DistAttention& attention_;
  const bool keeps_;
  const Operands on_;
  const Stream stream_;
  KeptKv kept_;
};

class EagerPasses final : public MeasuredPasses {
 public:
  EagerPasses(DeviceCommunicator& communicator, DistAttention& attention, bool keeps)
      : passes_(communicator, attention, keeps) {}
  TimedCall forward() override {
    return {[this] { passes_.first(); }, passes_.stream()};
  }
  TimedCall backward() override {
    if (passes_.keeps()) return {};
    return {[this] { passes_.backward(); }, passes_.stream()};
  }

 private:
  RankPasses passes_;
};

class GraphPasses final : public MeasuredPasses {
 public:
  GraphPasses(DeviceCommunicator& communicator, DistAttention& attention, bool keeps)
      : passes_(communicator, attention, keeps) {
    const auto capture = [&](auto pass) {
      pass();  // first use allocates
      passes_.stream().wait();
      return std::make_unique<Graph>(passes_.stream(), [&] {
        for (int i = 0; i < kPassesInGraph; ++i) pass();
      });
    };
    forward_ = capture([&] { passes_.first(); });
    if (!keeps) backward_ = capture([&] { passes_.backward(); });
  }
  TimedCall forward() override {
    return {[this] { forward_->replay(); }, passes_.stream(), kPassesInGraph};
  }
  TimedCall backward() override {
    if (passes_.keeps()) return {};
    return {[this] { backward_->replay(); }, passes_.stream(), kPassesInGraph};
  }

 private:
  RankPasses passes_;
  std::unique_ptr<Graph> forward_, backward_;
};

}  // namespace

Stream::Stream() {
  cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}
Stream::~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
void Stream::wait() const { cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

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

std::vector<PassTimes> measure_passes(Communicator& control, const Repeats& repeats,
                                      const std::vector<MeasuredPasses*>& all) {
  std::vector<PassTimes> times(all.size());
  using Result = CallTime PassTimes::*;
  using MakeCall = TimedCall (MeasuredPasses::*)();
  const auto measure = [&](Result pass, MakeCall make_call) {
    std::vector<TimedCall> calls;
    std::vector<CallTime*> results;
    for (size_t i = 0; i < all.size(); ++i) {
      TimedCall timed = (all[i]->*make_call)();
      if (!timed.call) continue;
      calls.push_back(std::move(timed));
      results.push_back(&(times[i].*pass));
    }
    const std::vector<CallTime> measured = measure_in_turns(control, repeats, calls);
    for (size_t i = 0; i < calls.size(); ++i) *results[i] = measured[i];
  };
  measure(&PassTimes::forward, &MeasuredPasses::forward);
  measure(&PassTimes::backward, &MeasuredPasses::backward);
  return times;
}

std::unique_ptr<MeasuredPasses> whole_mask_passes(const Mask& mask, const HeadConfig& heads) {
  return std::make_unique<WholeMaskPasses>(mask, heads);
}

std::unique_ptr<MeasuredPasses> alone_passes(const Plan& plan, int rank) {
  if (plan.grid()->row_move != RowMove::kNone) return nullptr;
  return std::make_unique<AlonePasses>(plan, rank);
}

std::unique_ptr<MeasuredPasses> distributed_passes(DeviceCommunicator& communicator, DistAttention& attention,
                                                   bool keeps, bool as_graph) {
  if (as_graph) return std::make_unique<GraphPasses>(communicator, attention, keeps);
  return std::make_unique<EagerPasses>(communicator, attention, keeps);
}

std::vector<DeviceActivity> trace_distributed(DeviceCommunicator& communicator, DistAttention& attention, bool keeps,
                                              DeviceTrace& trace) {
  RankPasses passes(communicator, attention, keeps);
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
