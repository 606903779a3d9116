// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One step, forward and backward, over ranks with device memory: shards are uploaded, results fetched and undispatched.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <vector>

#include "attn/sm90/sm90_backend.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "runtime/device/blocking_communicator.hpp"
#include "runtime/step.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"

namespace tangram::testing {

inline int num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/// Whether some of `size` ranks, as threads, share a GPU (DeviceCommunicatorConfig::lockstep).
inline bool must_keep_step(int size) { return size > num_gpus(); }

inline bool have_hopper() {
  int major = 0;
  return num_gpus() > 0 && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         major == 9;
}

/// A tensor in device memory with the contents of a host tensor.
class DeviceTensor {
 public:
  explicit DeviceTensor(const HostTensor& host)
      : buffer_(cuda::DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes()))),
        view_{{buffer_.as<void>(), host.dtype(), host.rows(), host.heads(), host.dim(), host.view().row_stride,
               host.view().head_stride}} {}

  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  template <class T>
  T* as() const {
    return buffer_.as<T>();
  }
  void fetch(HostTensor& host) const {
    cuda::check(cudaMemcpy(host.view().data, view_.data, static_cast<size_t>(host.bytes()), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
  }

 private:
  cuda::DeviceBuffer buffer_;
  TensorView view_;
};

class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<float>& values)
      : buffer_(cuda::DeviceBuffer::copy_of(values.data(), values.size() * sizeof(float))) {}
  float* data() const { return buffer_.as<float>(); }
  void fetch(std::vector<float>& values) const {
    cuda::check(cudaMemcpy(values.data(), buffer_.as<float>(), values.size() * sizeof(float), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
  }

 private:
  cuda::DeviceBuffer buffer_;
};

/// How often, and how, a rank runs the step. The results are those of the last time.
struct DeviceRun {
  int num_steps = 1;
  bool as_graph = false;  // captured once, replayed num_steps times
};

/// The operands of one rank on its GPU.
struct DeviceOperands {
  HostTensor q_shard, k_shard, v_shard, dout_shard;
  StepResults local;
  std::vector<float> sink_rows;
  DeviceTensor q, k, v, dout, out, lse, dq, dk, dv;
  DeviceVector max_logits, sink, dsink;

  static HostTensor shard(const Dispatch& dispatch, int rank, const HostTensor& global) {
    HostTensor local(global.dtype(), dispatch.rows_per_rank(), global.heads(), global.dim());
    dispatch_rows(dispatch, rank, global, local);
    return local;
  }

  DeviceOperands(const Plan& plan, int rank, const StepOptions& options, const StepInputs& in)
      : q_shard(shard(plan.q_dispatch, rank, in.q)),
        k_shard(shard(plan.k_dispatch, rank, in.k)),
        v_shard(shard(plan.k_dispatch, rank, in.v)),
        dout_shard(shard(plan.q_dispatch, rank, in.dout)),
        local(make_results(plan.q_dispatch.rows_per_rank(), plan.k_dispatch.rows_per_rank(), options)),
        sink_rows(sink_of_rank(plan, rank, options, in)),
        q(q_shard),
        k(k_shard),
        v(v_shard),
        dout(dout_shard),
        out(local.out),
        lse(local.lse),
        dq(local.dq),
        dk(local.dk),
        dv(local.dv),
        max_logits(local.max_logits),
        sink(sink_rows),
        dsink(local.dsink) {}
};

inline void enqueue_step(const StepOptions& options, DeviceOperands& on, DistAttention& attention, KeptKv& kept,
                         cudaStream_t stream) {
  const Sink sink{on.sink.data(), options.seqlen_sink, options.sink_layout};
  const Plan& plan = attention.plan();
  const bool keeps = plan.grid() == nullptr ? plan.config.overlap.keep_remote_kv : options.use_kept;
  KeptKv* const kept_or_null = keeps ? &kept : nullptr;
  attention.forward(
      {on.q, on.k, on.v, on.out, on.lse.as<float>(), on.max_logits.data(), sink, kept_or_null, options.attn}, stream);
  attention.backward(
      {on.q, on.k, on.v, on.out, on.lse.as<float>(), on.dout, on.dq, on.dk, on.dv,
       options.seqlen_sink > 0 ? on.dsink.data() : nullptr, sink, options.dsink_reduce, kept_or_null, options.attn},
      stream);
}

/// Ranks may share a GPU, where whatever allocates or loads waits for kernels that wait for other ranks: no rank
/// launches before all have what they need.
inline void run_steps(const StepOptions& options, const DeviceRun& run, DeviceOperands& on, DistAttention& attention,
                      Communicator& control, cudaStream_t stream) {
  KeptKv kept;
  if (!run.as_graph) control.barrier("operands are there");
  if (!run.as_graph) {
    for (int i = 0; i < run.num_steps; ++i) enqueue_step(options, on, attention, kept, stream);
    return;
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue_step(options, on, attention, kept, stream);
  cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda::check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  cuda::check(cudaGraphUpload(exec, stream), "cudaGraphUpload");
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  control.barrier("graphs are there");
  for (int i = 0; i < run.num_steps; ++i) cuda::check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  control.barrier("graphs have run");  // destroying one may wait for the device
  cuda::check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

/// The part of one rank; results undispatched into `r` (each rank passes its own).
inline void device_rank_step(const StepOptions& options, const DeviceRun& run, const StepInputs& in,
                             DeviceCommunicator& comm, DistAttention& attention, StepResults& r) {
  const Plan& plan = attention.plan();
  DeviceOperands on(plan, comm.rank(), options, in);
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  run_steps(options, run, on, attention, comm.control(), stream);
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  comm.control().barrier("steps have run");
  cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  comm.check();

  StepResults& local = on.local;
  on.out.fetch(local.out), on.lse.fetch(local.lse);
  on.dq.fetch(local.dq), on.dk.fetch(local.dk), on.dv.fetch(local.dv);
  on.max_logits.fetch(local.max_logits), on.dsink.fetch(local.dsink);
  undispatch_results(plan, comm.control(), options, local, r);
}

/// Makes the communicator of one rank; its GPU is current.
using MakeCommunicator = std::function<std::unique_ptr<DeviceCommunicator>(Communicator& control)>;

inline std::unique_ptr<DeviceCommunicator> make_blocking(Communicator& control) {
  return std::make_unique<BlockingCommunicator>(control, false);
}
inline std::unique_ptr<DeviceCommunicator> make_blocking_with_flags(Communicator& control) {
  return std::make_unique<BlockingCommunicator>(control, true);
}

/// Runs `rank_main` on a thread for each rank, on GPU rank % num_gpus().
inline void run_device_ranks(int cp_size, const MakeCommunicator& make,
                             const std::function<void(DeviceCommunicator&)>& rank_main) {
  run_local_ranks(cp_size, [&](Communicator& control) {
    cuda::check(cudaSetDevice(control.rank() % num_gpus()), "cudaSetDevice");
    const std::unique_ptr<DeviceCommunicator> comm = make(control);
    rank_main(*comm);
    control.barrier("rank ends");
  });
}

/// The step over all ranks of `plan`; results as rank 0 has them.
inline StepResults device_step(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& in,
                               const DistAttentionOptions& how, const MakeCommunicator& make,
                               const DeviceRun& run = {}) {
  StepResults of_rank_0;
  run_device_ranks(plan->cp_size(), make, [&](DeviceCommunicator& comm) {
    const Sm90Backend backend;
    DistAttention attention(plan, comm, backend, how);
    StepResults results = make_results(plan->q_dispatch.seqlen(), plan->k_dispatch.seqlen(), options);
    device_rank_step(options, run, in, comm, attention, results);
    if (comm.rank() == 0) of_rank_0 = std::move(results);
  });
  return of_rank_0;
}

}  // namespace tangram::testing
