// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/device_bench.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>

#include "core/median.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "plan/program/emit.hpp"
#include "tangram/backends.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/head_masks.hpp"

namespace tangram::cli {

namespace {

class Event {
 public:
  Event() { cuda::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { cuda::check(cudaEventRecord(event_, nullptr), "cudaEventRecord"); }
  double seconds_since(const Event& begin) {
    cuda::check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Seconds of one of `count` calls.
double timed(int count, const std::function<void()>& call) {
  Event begin, end;
  begin.record();
  for (int i = 0; i < count; ++i) call();
  end.record();
  return end.seconds_since(begin) / count;
}

/// A device tensor of random values: a block drawn on the host, repeated.
class DeviceTensor {
 public:
  DeviceTensor(DType dtype, int64_t rows, int heads, int dim, unsigned seed)
      : buffer_(static_cast<size_t>(std::max<int64_t>(rows, 1) * heads * dim) * size_of(dtype)), view_{} {
    view_.data = buffer_.as<void>();
    view_.dtype = dtype;
    view_.rows = rows;
    view_.heads = heads;
    view_.dim = dim;
    view_.row_stride = int64_t{heads} * dim;
    view_.head_stride = dim;
    constexpr int kBlock = 1 << 20;
    HostTensor block(DType::kFloat32, 1, 1, kBlock);
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    std::generate_n(block.data<float>(), kBlock, [&] { return normal(rng); });
    const HostTensor values = block.to(dtype);
    const auto block_bytes = static_cast<size_t>(values.bytes());
    for (size_t at = 0; at < buffer_.bytes(); at += block_bytes) {
      cuda::upload(buffer_.as<char>() + at, values.data<char>(), std::min(block_bytes, buffer_.bytes() - at));
    }
  }
  /// So many rows of some heads, contiguous.
  TensorView first_rows(int64_t rows, int heads) const {
    TensorView view = view_;
    view.rows = rows;
    view.heads = heads;
    view.row_stride = int64_t{heads} * view.dim;
    return view;
  }

 private:
  cuda::DeviceBuffer buffer_;
  TensorView view_;
};

/// Tensors for the whole mask, of which smaller ones take the first rows.
struct Tensors {
  explicit Tensors(const Plan& plan)
      : heads(plan.config.heads),
        q(heads.dtype, plan.mask.seqlen_q(), heads.num_heads_q, heads.head_dim, 1),
        k(heads.dtype, plan.mask.seqlen_k(), heads.num_heads_kv, heads.head_dim, 2),
        v(heads.dtype, plan.mask.seqlen_k(), heads.num_heads_kv, heads.head_dim_v, 3),
        dout(heads.dtype, plan.mask.seqlen_q(), heads.num_heads_q, heads.head_dim_v, 4),
        out(heads.dtype, plan.mask.seqlen_q(), heads.num_heads_q, heads.head_dim_v, 5),
        dq(heads.dtype, plan.mask.seqlen_q(), heads.num_heads_q, heads.head_dim, 6),
        dk(heads.dtype, plan.mask.seqlen_k(), heads.num_heads_kv, heads.head_dim, 7),
        dv(heads.dtype, plan.mask.seqlen_k(), heads.num_heads_kv, heads.head_dim_v, 8),
        lse(static_cast<size_t>(plan.mask.seqlen_q() * heads.num_heads_q) * sizeof(float)) {}

  HeadConfig heads;
  DeviceTensor q, k, v, dout, out, dq, dk, dv;
  cuda::DeviceBuffer lse;
};

/// One mask, and the times of its turns.
class MeasuredMask {
 public:
  MeasuredMask(std::span<const AttnSlice> slices, const AttnShape& shape, const Tensors& tensors,
               const AttnBackend& backend, const AttnOptions& options, AttnPasses passes = AttnPasses::kBoth)
      : attention_(slices, shape, backend), passes_(passes) {
    for (const AttnSlice& slice : slices) area_ += area(slice);
    auto* lse = tensors.lse.as<float>();
    const int64_t rows = shape.seqlen_q, keys = shape.seqlen_k;
    const int heads = shape.num_heads_q, key_heads = shape.num_heads_kv;
    forward_.q = backward_.q = tensors.q.first_rows(rows, heads);
    forward_.k = backward_.k = tensors.k.first_rows(keys, key_heads);
    forward_.v = backward_.v = tensors.v.first_rows(keys, key_heads);
    forward_.out = tensors.out.first_rows(rows, heads);
    backward_.out = forward_.out;
    forward_.lse = lse;
    backward_.lse = lse;
    backward_.dout = tensors.dout.first_rows(rows, heads);
    backward_.dq = tensors.dq.first_rows(rows, heads);
    backward_.dk = tensors.dk.first_rows(keys, key_heads);
    backward_.dv = tensors.dv.first_rows(keys, key_heads);
    forward_.options = backward_.options = options;
  }

  /// Backward works on what forward left: out and lse are this mask's.
  void take_turn() {
    if (forward_count_ == 0) warm_up();
    if (passes_ != AttnPasses::kBackward) {
      forward_times_.push_back(timed(forward_count_, [&] { attention_.forward(forward_); }));
    } else {
      attention_.forward(forward_);
    }
    if (passes_ == AttnPasses::kForward) return;
    backward_times_.push_back(timed(backward_count_, [&] { attention_.backward(backward_); }));
  }
  /// Nothing of a pass that is not this mask's.
  KernelTimes times() const {
    return {passes_ == AttnPasses::kBackward ? 0 : area_, forward_times_.empty() ? 0 : median(forward_times_),
            backward_times_.empty() ? 0 : median(backward_times_)};
  }

 private:
  void warm_up() {
    const auto count_for = [](const std::function<void()>& call) {
      constexpr double kTurnSeconds = 0.01;  // long enough that events cost nothing
      timed(2, call);
      return static_cast<int>(std::clamp(kTurnSeconds / timed(2, call), 1.0, 1000.0));
    };
    forward_count_ = count_for([&] { attention_.forward(forward_); });
    if (passes_ != AttnPasses::kForward) backward_count_ = count_for([&] { attention_.backward(backward_); });
  }

  FlexAttention attention_;
  const AttnPasses passes_;
  AttnForwardArgs forward_;
  AttnBackwardArgs backward_;
  int64_t area_ = 0;
  int forward_count_ = 0, backward_count_ = 0;
  std::vector<double> forward_times_, backward_times_;
};

AttnShape shape_of(const Plan& plan, int64_t rows, int64_t keys, int head_groups = 1) {
  const HeadConfig& h = plan.config.heads;
  return {rows, keys, h.num_heads_q / head_groups, h.num_heads_kv / head_groups, h.head_dim, h.head_dim_v, h.dtype};
}

/// The calls of a rank: one over all of its keys, or, where queries move, those of its programs.
std::vector<std::unique_ptr<MeasuredMask>> calls_of_rank(const Plan& plan, int rank, const Tensors& tensors,
                                                         const AttnBackend& backend, const AttnOptions& options) {
  std::vector<std::unique_ptr<MeasuredMask>> calls;
  if (plan.movement.empty()) {
    const RankPlan& of = plan.ranks[static_cast<size_t>(rank)];
    calls.push_back(std::make_unique<MeasuredMask>(
        of.slices, shape_of(plan, plan.q_dispatch.rows_per_rank(), of.kv_rows), tensors, backend, options));
    return calls;
  }
  for (const ProgramMask& mask : program_masks(plan, rank)) {
    if (mask.slices.empty()) continue;
    const AttnPasses passes =
        mask.passes == ProgramMask::Passes::kForward ? AttnPasses::kForward : AttnPasses::kBackward;
    calls.push_back(std::make_unique<MeasuredMask>(mask.slices, mask.shape, tensors, backend, options, passes));
  }
  return calls;
}

}  // namespace

bool is_benched_on_device(const std::string& name) {
  return name != "auto" && make_attn_backend(name)->memory() == MemoryKind::kDevice;
}

DeviceBench bench_on_device(const Plan& plan, const StepOptions& options) {
  const std::unique_ptr<AttnBackend> backend = make_attn_backend(options.backend);
  const AttnOptions attn = make_attn_options(options);
  const Tensors tensors(plan);
  const auto groups = static_cast<int>(num_head_masks(plan));  // flattened over rows of the whole mask
  MeasuredMask whole(plan.mask.slices(), shape_of(plan, plan.mask.seqlen_q(), plan.mask.seqlen_k(), groups), tensors,
                     *backend, attn);
  std::vector<std::vector<std::unique_ptr<MeasuredMask>>> ranks;
  for (int rank = 0; plan.cp_size() > 1 && rank < plan.cp_size(); ++rank) {
    ranks.push_back(calls_of_rank(plan, rank, tensors, *backend, attn));
  }
  for (int64_t turn = 0; turn < options.num_repeats; ++turn) {
    whole.take_turn();
    for (const auto& calls : ranks) {
      for (const auto& call : calls) call->take_turn();
    }
  }
  DeviceBench bench;
  bench.whole = whole.times();
  for (const auto& calls : ranks) {
    KernelTimes& sum = bench.ranks.emplace_back();
    for (const auto& call : calls) {
      const KernelTimes times = call->times();
      sum.area += times.area;
      sum.forward_s += times.forward_s;
      sum.backward_s += times.backward_s;
    }
  }
  return bench;
}

}  // namespace tangram::cli
