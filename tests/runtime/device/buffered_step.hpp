// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A step of ranks as threads over a DistMaskBuffer, in host memory that plays that of GPUs.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/buffer_backend.hpp"
#include "runtime/device/counted_ranks.hpp"
#include "runtime/staged_plan.hpp"
#include "runtime/step.hpp"
#include "tangram/dist_mask_buffer.hpp"
#include "tangram/env.hpp"
#include "tangram/local_group.hpp"

namespace tangram::testing {

using Plans = std::vector<std::shared_ptr<const Plan>>;
inline void* const kStream = reinterpret_cast<void*>(uintptr_t{16});
// Partial results are rounded to float32 once a rank, sums once per contribution.
inline constexpr double kTolerance = 2e-6;

/// The largest of all plans.
inline DistMaskCapacity capacity_of(const Plans& plans) {
  DistMaskCapacity most{
      .kv_rows = 0, .sent_rows = 0, .local_ranges = 0, .documents = 0, .allow_fully_masked_rows = false};
  for (const auto& plan : plans) {
    const DistMaskCapacity needed = capacity_for(*plan);
    most.kv_rows = std::max(most.kv_rows, needed.kv_rows);
    most.sent_rows = std::max(most.sent_rows, needed.sent_rows);
    most.local_ranges = std::max(most.local_ranges, needed.local_ranges);
    most.documents = std::max(most.documents, needed.documents);
    most.slices = std::max(most.slices, needed.slices);
    most.allow_fully_masked_rows = most.allow_fully_masked_rows || needed.allow_fully_masked_rows;
  }
  return most;
}

/// Ranks as threads with a GPU each, whose small kernels the host runs.
class HostRanks {
 public:
  /// `checked`: under TANGRAM_SANITY_CHECK.
  explicit HostRanks(int size, bool checked = false) : size_(size), before_(Env::get()) {
    set_devices(size);
    Env env = before_;
    env.sanity_check = checked;
    Env::set(env);
    set_executor([](const KernelCall& call) { Recording::put(host_kernel(call)); });
  }
  ~HostRanks() {
    set_executor(nullptr);
    set_devices(1);
    Env::set(before_);
  }

  void run(const std::function<void(counted::CountingControl&, DeviceCommunicator&)>& body) const {
    run_local_ranks(
        size_,
        [&](Communicator& plain) {
          counted::CountingControl control(plain);
          cudaSetDevice(control.rank());
          const auto communicator = make_device_communicator(control, {.timeout_s = 20});
          body(control, *communicator);
          control.barrier("end");
        },
        20);
  }

 private:
  const int size_;
  const Env before_;
};

/// Operands and results of one rank, at the same addresses for all plans.
class RankStep {
 public:
  RankStep(const Plan& like, const StepOptions& options, DistMaskBuffer& buffer)
      : options_(options), work_(static_cast<size_t>(bytes(buffer)) + 256) {
    const HeadConfig& h = options.heads;
    q_ = HostTensor(h.dtype, like.q_dispatch.rows_per_rank(), h.num_heads_q, h.head_dim);
    dout_ = HostTensor(h.dtype, like.q_dispatch.rows_per_rank(), h.num_heads_q, h.head_dim_v);
    k_ = HostTensor(h.dtype, like.k_dispatch.rows_per_rank(), h.num_heads_kv, h.head_dim);
    v_ = HostTensor(h.dtype, like.k_dispatch.rows_per_rank(), h.num_heads_kv, h.head_dim_v);
    results_ = make_results(q_.rows(), k_.rows(), options);
  }

  /// What a step begins with; the workspace and results hold NaN.
  void load(const Plan& plan, int rank, const StepInputs& in) {
    dispatch_rows(plan.q_dispatch, rank, in.q, q_);
    dispatch_rows(plan.q_dispatch, rank, in.dout, dout_);
    dispatch_rows(plan.k_dispatch, rank, in.k, k_);
    dispatch_rows(plan.k_dispatch, rank, in.v, v_);
    const std::vector<float> sink = sink_of_rank(plan, rank, options_, in);
    sink_.resize(sink.size());
    std::copy(sink.begin(), sink.end(), sink_.begin());
    std::fill(work_.begin(), work_.end(), char{-1});
    for (HostTensor* t : {&results_.out, &results_.lse, &results_.dq, &results_.dk, &results_.dv}) {
      t->fill(std::nanf(""));
    }
  }
  /// `max_logits`: over all ranks, which meet for it.
  DistForwardArgs forward(DistMaskBuffer& buffer, bool max_logits = true) {
    DistForwardArgs forward{q_, k_, v_, results_.out, results_.lse.data<float>()};
    if (max_logits) forward.max_logits = results_.max_logits.data();
    forward.sink = {sink_.data(), options_.seqlen_sink, options_.sink_layout};
    forward.workspace = workspace(buffer);
    buffer.forward(forward, kStream);
    return forward;
  }
  void call(DistMaskBuffer& buffer) {
    const DistForwardArgs forward = this->forward(buffer);
    DistBackwardArgs backward{q_,    k_,          v_,          results_.out, results_.lse.data<float>(),
                              dout_, results_.dq, results_.dk, results_.dv};
    backward.dsink = options_.seqlen_sink > 0 ? results_.dsink.data() : nullptr;
    backward.sink = forward.sink;
    backward.workspace = forward.workspace;
    buffer.backward(backward, kStream);
  }
  /// Collective.
  StepResults results(const Plan& plan, Communicator& control) const {
    StepResults all = make_results(plan.q_dispatch.seqlen(), plan.k_dispatch.seqlen(), options_);
    undispatch_results(plan, control, options_, results_, all);
    return all;
  }

 private:
  static int64_t bytes(const DistMaskBuffer& buffer) {
    return std::max(buffer.forward_workspace_bytes(), buffer.backward_workspace_bytes());
  }
  AttnWorkspace workspace(const DistMaskBuffer& buffer) {
    const auto address = (reinterpret_cast<uintptr_t>(work_.data()) + 255) / 256 * 256;
    return {reinterpret_cast<void*>(address), bytes(buffer)};
  }

  const StepOptions options_;
  HostTensor q_, k_, v_, dout_;
  std::vector<float> sink_;
  StepResults results_;
  std::vector<char> work_;
};

/// Packs of as many rows: other documents for each seed.
inline Plans packs(int count, int size, int64_t total, const HeadConfig& heads, DType reduce_dtype = DType::kFloat32) {
  Plans plans;
  for (int seed = 1; seed <= count; ++seed) {
    const Mask mask = counted::make_documents(static_cast<unsigned>(seed), total, 2 + seed % 5);
    plans.push_back(plan_of(mask, heads, size, 1 + seed % 3, 1 + seed % 2, false, reduce_dtype));
  }
  return plans;
}

}  // namespace tangram::testing
