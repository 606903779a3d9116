// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One captured step over GPUs, replayed with many plans. Needs a Hopper GPU for each of two ranks; skipped elsewhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/device_buffer.hpp"
#include "runtime/device/counted_ranks.hpp"
#include "runtime/device/device_transports.hpp"
#include "tangram/dist_mask_buffer.hpp"

namespace tangram {
namespace {

using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

constexpr int64_t kRows = 4096;
constexpr int kPlans = 40;
// Tolerance as in device_dist_attention_test.cpp: kernels round probabilities and dS to bfloat16.
constexpr double kTolerance = 6e-3;

void enqueue(const testing::DeviceOperands& on, DistMaskBuffer& buffer, const cuda::DeviceBuffer& work,
             const StepOptions& options, cudaStream_t stream) {
  const AttnWorkspace workspace{work.as<void>(), static_cast<int64_t>(work.bytes())};
  buffer.forward({.q = on.q,
                  .k = on.k,
                  .v = on.v,
                  .out = on.out,
                  .lse = on.lse.as<float>(),
                  .max_logits = on.max_logits.data(),
                  .options = options.attn,
                  .workspace = workspace},
                 stream);
  buffer.backward({.q = on.q,
                   .k = on.k,
                   .v = on.v,
                   .out = on.out,
                   .lse = on.lse.as<float>(),
                   .dout = on.dout,
                   .dq = on.dq,
                   .dk = on.dk,
                   .dv = on.dv,
                   .options = options.attn,
                   .workspace = workspace},
                  stream);
}

/// Results of the rank's rows.
StepResults fetch(testing::DeviceOperands& on, cudaStream_t stream) {
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  on.out.fetch(on.local.out), on.lse.fetch(on.local.lse), on.dq.fetch(on.local.dq);
  on.dk.fetch(on.local.dk), on.dv.fetch(on.local.dv), on.max_logits.fetch(on.local.max_logits);
  return std::move(on.local);
}

TEST(DistMaskBufferOnGpus, OneGraphReplaysWithManyPlansAsCallsAndAsASingleRank) {
  if (!testing::have_hopper() || testing::num_gpus() < 2) GTEST_SKIP() << "needs two Hopper GPUs";
  StepOptions options;
  options.heads = {.num_heads_q = 8, .num_heads_kv = 2, .head_dim = 128, .head_dim_v = 128};
  options.result_dtype = DType::kBFloat16;
  options.attn.deterministic = true;
  std::vector<std::shared_ptr<const Plan>> plans;
  DistMaskCapacity capacity{.kv_rows = 0,
                            .sent_rows = 0,
                            .local_ranges = 0,
                            .documents = 0,
                            .deterministic = true,
                            .allow_fully_masked_rows = false};
  for (unsigned seed = 1; seed <= kPlans; ++seed) {
    DistAttnConfig config;
    config.cp_size = 2;
    config.heads = options.heads;
    const Mask mask = counted::make_documents(seed, kRows, 3 + static_cast<int>(seed % 17));
    plans.push_back(std::make_shared<const Plan>(make_plan(mask, config)));
    const DistMaskCapacity needed = capacity_for(*plans.back());
    capacity.kv_rows = std::max(capacity.kv_rows, needed.kv_rows);
    capacity.sent_rows = std::max(capacity.sent_rows, needed.sent_rows);
    capacity.local_ranges = std::max(capacity.local_ranges, needed.local_ranges);
    capacity.documents = std::max(capacity.documents, needed.documents);
    capacity.slices = std::max(capacity.slices, needed.slices);
    capacity.allow_fully_masked_rows = capacity.allow_fully_masked_rows || needed.allow_fully_masked_rows;
  }
  const StepInputs inputs = testing::make_inputs(plans[0]->mask, options);
  const auto make = testing::over(DeviceTransport::kCopyEngine);
  testing::run_device_ranks(2, make, [&](DeviceCommunicator& comm) {
    const Sm90Backend backend;
    DistMaskBuffer buffer(*plans[0], capacity, comm, backend);
    const cuda::DeviceBuffer work(static_cast<size_t>(buffer.backward_workspace_bytes()));
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    // Whatever rows a rank has of a plan, it has equally many.
    testing::DeviceOperands on(*plans[0], comm.rank(), options, inputs);
    buffer.set(plans[0], stream);
    enqueue(on, buffer, work, options, stream);  // loads kernels
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    comm.control().barrier("warm");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    enqueue(on, buffer, work, options, stream);
    cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    comm.control().barrier("graphs are there");
    for (const auto& plan : plans) {
      testing::DeviceOperands fresh(*plan, comm.rank(), options, inputs);
      const auto copy = [](const testing::DeviceTensor& to, const HostTensor& from) {
        cuda::upload(TensorView(to).data, from.view().data, static_cast<size_t>(from.bytes()));
      };
      copy(on.q, fresh.q_shard), copy(on.k, fresh.k_shard), copy(on.v, fresh.v_shard), copy(on.dout, fresh.dout_shard);
      buffer.set(plan, stream);
      cuda::check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
      on.local = testing::make_results(plan->q_dispatch.rows_per_rank(), plan->k_dispatch.rows_per_rank(), options);
      const StepResults replayed = fetch(on, stream);
      enqueue(fresh, buffer, work, options, stream);
      const StepResults called = fetch(fresh, stream);
      comm.check();
      testing::expect_same_bits(replayed, called);
      StepResults whole = testing::make_results(kRows, kRows, options);
      testing::undispatch_results(*plan, comm.control(), options, replayed, whole);
      if (comm.rank() != 0) continue;
      const auto cpu = make_attn_backend("cpu");
      testing::expect_close(whole, testing::single_step(plan->mask, options, inputs, *cpu), kTolerance);
    }
    comm.control().barrier("graphs have run");
    cuda::check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  });
}

}  // namespace
}  // namespace tangram
