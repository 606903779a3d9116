// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/gpu/gpu_step.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "attn/sm90/sm90_backend.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

namespace {

class GpuRank final : public StepRank {
 public:
  GpuRank(std::shared_ptr<const Plan> plan, Communicator& control, const DeviceCommunicatorConfig& config)
      : communicator_(make_device_communicator(control, config)),
        attention_(std::move(plan), *communicator_, backend_) {
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    for (cudaEvent_t* event : {&begin_, &end_}) cuda::check(cudaEventCreate(event), "cudaEventCreate");
  }
  ~GpuRank() override {
    for (const cudaEvent_t event : {begin_, end_}) static_cast<void>(cudaEventDestroy(event));
    static_cast<void>(cudaStreamDestroy(stream_));
  }

  Communicator& control() override { return communicator_->control(); }
  DistAttention& attention() override { return attention_; }
  std::string transport() const override { return std::string(communicator_->name()); }
  std::shared_ptr<void> allocate(int64_t num_bytes) override {
    const auto buffer = std::make_shared<cuda::DeviceBuffer>(static_cast<size_t>(num_bytes));
    return {buffer, buffer->as<void>()};
  }
  void copy(void* to, const void* from, int64_t num_bytes) override {
    cuda::check(cudaMemcpy(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDefault), "cudaMemcpy");
  }

  PassFigures measure(const std::function<void(void*)>& pass) override {
    communicator_->reset_counters();
    control().barrier("pass begins");
    cuda::check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    pass(stream_);
    cuda::check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    communicator_->check();
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    control().all_reduce({&ms, 1}, ReduceOp::kMax, "slowest rank");
    return {ms * 1e-3, 0, communicator_->counters(), communicator_->across_nodes()};
  }

 private:
  const Sm90Backend backend_;
  std::unique_ptr<DeviceCommunicator> communicator_;
  DistAttention attention_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

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

std::unique_ptr<StepRank> make_gpu_rank(std::shared_ptr<const Plan> plan, const StepOptions& options,
                                        Communicator& control) {
  const std::string transport = options.ranks_per_node > 0 ? "nccl" : "copy_engine";
  DeviceCommunicatorConfig config;
  config.transport = parse_device_transport(options.transport.empty() ? transport : options.transport);
  config.ranks_per_node = static_cast<int>(options.ranks_per_node);
  config.exact_memory = true;  // of one mask
  return std::make_unique<GpuRank>(std::move(plan), control, config);
}

}  // namespace tangram::cli
