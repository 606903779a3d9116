// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/gpu/gpu_step.hpp"

#include <cuda_runtime_api.h>

#include <limits>

#include "attn/sm90/sm90_backend.hpp"
#include "core/median.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

namespace {

/// A tensor of a rank in device memory.
class DeviceTensor {
 public:
  DeviceTensor(DType dtype, int64_t rows, int heads, int dim)
      : buffer_(static_cast<size_t>(rows * heads * dim) * size_of(dtype)),
        view_{{buffer_.as<void>(), dtype, rows, heads, dim, int64_t{heads} * dim, dim}} {}
  /// The rank's rows of a tensor in host memory.
  DeviceTensor(const Dispatch& dispatch, int rank, const HostTensor& whole)
      : DeviceTensor(whole.dtype(), dispatch.rows_per_rank(), whole.heads(), whole.dim()) {
    HostTensor shard(whole.dtype(), view_.rows, whole.heads(), whole.dim());
    dispatch_rows(dispatch, rank, whole, shard);
    cuda::upload(view_.data, shard.view().data, static_cast<size_t>(shard.bytes()));
  }
  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  float* floats() const { return buffer_.as<float>(); }

  /// All ranks' rows, on every rank. Collective.
  void collect(const Dispatch& dispatch, Communicator& control, HostTensor& whole) const {
    HostTensor shard(view_.dtype, view_.rows, view_.heads, view_.dim);
    cuda::check(cudaMemcpy(shard.view().data, view_.data, static_cast<size_t>(shard.bytes()), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
    undispatch_rows(dispatch, control, shard, whole);
  }

 private:
  cuda::DeviceBuffer buffer_;
  TensorView view_;
};

/// Seconds of `pass` on the slowest rank, all starting together.
template <class AttnPass>
double timed(DeviceCommunicator& communicator, cudaStream_t stream, const AttnPass& pass) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check(cudaEventCreate(&begin), "cudaEventCreate");
  cuda::check(cudaEventCreate(&end), "cudaEventCreate");
  communicator.control().barrier("pass begins");
  cuda::check(cudaEventRecord(begin, stream), "cudaEventRecord");
  pass();
  cuda::check(cudaEventRecord(end, stream), "cudaEventRecord");
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  communicator.check();
  float ms = 0;
  cuda::check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  cuda::check(cudaEventDestroy(begin), "cudaEventDestroy");
  cuda::check(cudaEventDestroy(end), "cudaEventDestroy");
  communicator.control().all_reduce({&ms, 1}, ReduceOp::kMax, "slowest rank");
  return ms * 1e-3;
}

}  // namespace

void require_gpu_code() {}

void choose_gpus(Communicator& control) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) count = 0;
  float most_missing = static_cast<float>(control.size() - count);
  control.all_reduce({&most_missing, 1}, ReduceOp::kMax, "missing GPUs");
  if (most_missing > 0) {
    throw NotAvailable(fmt::format(
        "--gpus: needs a GPU for each rank (got {} for {} ranks{}{})", control.size() - static_cast<int>(most_missing),
        control.size(), status == cudaSuccess ? "" : ": ", status == cudaSuccess ? "" : cudaGetErrorName(status)));
  }
  cuda::check(cudaSetDevice(control.rank()), "cudaSetDevice");
}

StepResult run_gpu_step(const PlanSummary& summary, const StepInputs& inputs, const StepOptions& options,
                        Communicator& control) {
  const Plan& plan = *summary.plan;
  const HeadConfig& heads = plan.config.heads;
  const int rank = control.rank();
  const std::string transport = options.ranks_per_node > 0 ? "nccl" : "copy_engine";
  DeviceCommunicatorConfig config;
  config.transport = parse_device_transport(options.transport.empty() ? transport : options.transport);
  config.ranks_per_node = static_cast<int>(options.ranks_per_node);
  const std::unique_ptr<DeviceCommunicator> communicator = make_device_communicator(control, config);
  const Sm90Backend backend;
  DistAttention attention(summary.plan, *communicator, backend);

  const Dispatch &q_rows = plan.q_dispatch, &k_rows = plan.k_dispatch;
  const DeviceTensor q(q_rows, rank, inputs.q), k(k_rows, rank, inputs.k), v(k_rows, rank, inputs.v);
  const DeviceTensor dout(q_rows, rank, inputs.dout);
  const DeviceTensor out(heads.dtype, q_rows.rows_per_rank(), heads.num_heads_q, heads.head_dim_v);
  const DeviceTensor lse(DType::kFloat32, q_rows.rows_per_rank(), heads.num_heads_q, 1);
  const DeviceTensor dq(heads.dtype, q_rows.rows_per_rank(), heads.num_heads_q, heads.head_dim);
  const DeviceTensor dk(heads.dtype, k_rows.rows_per_rank(), heads.num_heads_kv, heads.head_dim);
  const DeviceTensor dv(heads.dtype, k_rows.rows_per_rank(), heads.num_heads_kv, heads.head_dim_v);

  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  KeptKv kept;
  KeptKv* const kept_or_null = keeps_inputs(plan) ? &kept : nullptr;
  const AttnOptions attn = make_attn_options(options);
  std::vector<double> forward_times, backward_times;
  StepResult result = empty_result(plan);
  result.comm_share = std::numeric_limits<double>::quiet_NaN();  // GPUs record no transfers here
  TrafficCounters forward_traffic, backward_traffic, forward_nodes, backward_nodes;
  for (int64_t repeat = 0; repeat < options.num_repeats; ++repeat) {
    communicator->reset_counters();
    forward_times.push_back(timed(*communicator, stream, [&] {
      attention.forward(
          {.q = q, .k = k, .v = v, .out = out, .lse = lse.floats(), .kept = kept_or_null, .options = attn}, stream);
    }));
    forward_traffic = communicator->counters();
    forward_nodes = communicator->across_nodes();
    communicator->reset_counters();
    backward_times.push_back(timed(*communicator, stream, [&] {
      attention.backward({.q = q,
                          .k = k,
                          .v = v,
                          .out = out,
                          .lse = lse.floats(),
                          .dout = dout,
                          .dq = dq,
                          .dk = dk,
                          .dv = dv,
                          .kept = kept_or_null,
                          .options = attn},
                         stream);
    }));
    backward_traffic = communicator->counters();
    backward_nodes = communicator->across_nodes();
  }
  cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");

  out.collect(q_rows, control, result.out);
  lse.collect(q_rows, control, result.lse);
  dq.collect(q_rows, control, result.dq);
  dk.collect(k_rows, control, result.dk);
  dv.collect(k_rows, control, result.dv);
  result.backend = backend.name();
  result.transport = communicator->name();
  result.is_root = rank == 0;
  result.forward_s = median(forward_times);
  result.backward_s = median(backward_times);
  result.rows_received = sum_over_ranks(control, forward_traffic.rows_received) / 2;
  result.forward_bytes = sum_over_ranks(control, forward_traffic.bytes_received);
  result.backward_bytes = sum_over_ranks(control, backward_traffic.bytes_received);
  result.ranks_per_node = config.ranks_per_node;
  result.node_rows = sum_over_ranks(control, forward_nodes.rows_received) / 2;
  result.node_forward_bytes = sum_over_ranks(control, forward_nodes.bytes_received);
  result.node_backward_bytes = sum_over_ranks(control, backward_nodes.bytes_received);
  return result;
}

}  // namespace tangram::cli
