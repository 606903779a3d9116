// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One step, forward and backward, by the runner of streams over host memory.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/device/host_memory_device.hpp"
#include "runtime/device/host_program_device.hpp"
#include "runtime/device/program_attention.hpp"
#include "runtime/pass_plan.hpp"
#include "runtime/step.hpp"

namespace tangram::testing {

/// One rank with its operands in host memory.
struct ProgramRank {
  RankContext base;
  HostMemoryDevice device;
  std::unique_ptr<ProgramAttention> attention;

  ProgramRank(std::shared_ptr<const Plan> plan, Communicator& control, const AttnBackend& backend,
              const ProgramOptions& options)
      : device(control) {
    base.plan = plan;
    base.communicator = &control;
    base.backend = &backend;
    base.rank = control.rank();
    base.shape = rank_shape(*plan, control.rank());
    base.fingerprint = fingerprint_of(*plan);
    attention = std::make_unique<ProgramAttention>(base, device, host_program_device(), options);
    memory.resize(static_cast<size_t>(attention->forward_workspace_bytes()) + 1);
  }
  /// Workspace of one call; contents of an earlier call are overwritten with poison.
  AttnWorkspace workspace() {
    std::fill(memory.begin(), memory.end(), char{-1});
    return {memory.data(), attention->forward_workspace_bytes()};
  }

 private:
  std::vector<char> memory;
};

inline int64_t row_sinks_of(const StepOptions& options) {
  return options.sink_layout == SinkLayout::kSsh ? options.seqlen_sink : 0;
}

using Inspect = std::function<void(Communicator&, AttnPass)>;

/// Like rank_step of runtime/step.hpp. `inspect` is called after each pass.
inline void program_rank_step(const StepOptions& options, const StepInputs& in, Communicator& comm,
                              const AttnBackend& backend, std::shared_ptr<const Plan> plan, int num_steps,
                              const Inspect& inspect, const ProgramTarget& target, StepResults& r) {
  ProgramRank rank(plan, comm, backend,
                   {.result_dtype = options.result_dtype,
                    .grad_dtype = options.grad_dtype,
                    .row_sinks = row_sinks_of(options),
                    .target = target});
  const auto shard = [&](const Dispatch& dispatch, const HostTensor& global) {
    HostTensor local(global.dtype(), dispatch.rows_per_rank(), global.heads(), global.dim());
    dispatch_rows(dispatch, comm.rank(), global, local);
    return local;
  };
  const HostTensor q = shard(plan->q_dispatch, in.q), dout = shard(plan->q_dispatch, in.dout);
  const HostTensor k = shard(plan->k_dispatch, in.k), v = shard(plan->k_dispatch, in.v);
  StepResults local = make_results(plan->q_dispatch.rows_per_rank(), plan->k_dispatch.rows_per_rank(), options);
  const std::vector<float> sink_rows = sink_of_rank(*plan, comm.rank(), options, in);
  const Sink sink{sink_rows.data(), options.seqlen_sink, options.sink_layout};
  KeptKv kept;
  KeptKv* const kept_or_null = options.use_kept ? &kept : nullptr;
  for (int step = 0; step < num_steps; ++step) {
    comm.reset_counters();
    const DistForwardArgs forward{q,
                                  k,
                                  v,
                                  local.out,
                                  local.lse.data<float>(),
                                  local.max_logits.data(),
                                  sink,
                                  kept_or_null,
                                  options.attn,
                                  rank.workspace()};
    rank.attention->check(forward);
    rank.attention->forward(forward, nullptr);
    if (inspect) inspect(comm, AttnPass::kForward);
    comm.reset_counters();
    const DistBackwardArgs backward{q,
                                    k,
                                    v,
                                    local.out,
                                    local.lse.data<float>(),
                                    dout,
                                    local.dq,
                                    local.dk,
                                    local.dv,
                                    options.seqlen_sink > 0 ? local.dsink.data() : nullptr,
                                    sink,
                                    options.dsink_reduce,
                                    kept_or_null,
                                    options.attn,
                                    rank.workspace()};
    rank.attention->check(backward);
    rank.attention->backward(backward, nullptr);
    if (inspect) inspect(comm, AttnPass::kBackward);
  }
  undispatch_results(*plan, comm, options, local, r);
}

inline StepResults program_step(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& in,
                                const AttnBackend& backend, int num_steps = 1, const Inspect& inspect = nullptr,
                                const ProgramTarget& target = {}) {
  StepResults of_rank_0;
  run_local_ranks(plan->cp_size(), [&](Communicator& comm) {
    StepResults results = make_results(plan->q_dispatch.seqlen(), plan->k_dispatch.seqlen(), options);
    program_rank_step(options, in, comm, backend, plan, num_steps, inspect, target, results);
    if (comm.rank() == 0) of_rank_0 = std::move(results);
  });
  return of_rank_0;
}

}  // namespace tangram::testing
