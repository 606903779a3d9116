// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/gpu/gpu_step.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

#include "comm/all_gather.hpp"
#include "comm/nodes/node_map.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/backends.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

namespace {

class GpuRank final : public StepRank {
 public:
  GpuRank(std::shared_ptr<const Plan> plan, Communicator& control, const DeviceCommunicatorConfig& config)
      : communicator_(make_device_communicator(control, config)),
        attention_(std::move(plan), *communicator_, *backend_) {
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
  const std::unique_ptr<AttnBackend> backend_ = make_attn_backend(best_attn_backend(MemoryKind::kDevice));
  std::unique_ptr<DeviceCommunicator> communicator_;
  DistAttention attention_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Pci {
  char address[32] = {};
};

/// Alike on all ranks. The addresses of GPUs repeat from node to node.
void require_own_gpus(Communicator& control, int device) {
  Pci own;
  cuda::check(cudaDeviceGetPCIBusId(own.address, sizeof(own.address), device), "cudaDeviceGetPCIBusId");
  const std::vector<Pci> gpus = comm::all_gather(control, own, "GPUs of ranks");
  const comm::NodeMap nodes = comm::NodeMap::of(control);
  std::map<std::pair<int, std::string>, int> ranks;
  for (int rank = 0; rank < control.size(); ++rank) {
    const char* const address = gpus[static_cast<size_t>(rank)].address;
    const auto [first, is_new] = ranks.emplace(std::pair(nodes.node_of(rank), address), rank);
    if (is_new) continue;
    throw NotAvailable(
        fmt::format("--gpus: needs a GPU for each rank (got {} for ranks {} and {})", address, first->second, rank));
  }
}

}  // namespace

void require_gpu_code() {}

void choose_gpus(Communicator& control) {
  struct Found {
    cudaError_t status = cudaSuccess;
    int count = 0;
    int device = 0;
  };
  Found own;
  own.status = cudaGetDeviceCount(&own.count);
  if (own.status != cudaSuccess) own.count = 0;
  const Env::Launch launch = Env::launch();
  own.device = gpu_of(launch, control.rank(), own.count);
  const std::vector<Found> found = comm::all_gather(control, own, "GPUs of hosts");
  for (size_t rank = 0; rank < found.size(); ++rank) {
    const auto [status, count, device] = found[rank];
    if (device < count) continue;
    throw NotAvailable(fmt::format(
        "--gpus: needs a GPU for each rank (got {} for {} ranks, on the host of rank {}{}{})", count, control.size(),
        rank, status == cudaSuccess ? "" : ": ", status == cudaSuccess ? "" : cudaGetErrorName(status)));
  }
  cuda::check(cudaSetDevice(own.device), "cudaSetDevice");
  require_own_gpus(control, own.device);
}

std::unique_ptr<StepRank> make_gpu_rank(std::shared_ptr<const Plan> plan, const StepOptions& options,
                                        Communicator& control) {
  const std::string transport = options.ranks_per_node > 0 ? "nccl" : "copy_engine";
  DeviceCommunicatorConfig config;
  config.transport = parse_device_transport(options.transport.empty() ? transport : options.transport);
  config.ranks_per_node = static_cast<int>(options.ranks_per_node);
  config.max_ctas = static_cast<int>(options.max_ctas);
  config.exact_memory = true;  // of one mask
  return std::make_unique<GpuRank>(std::move(plan), control, config);
}

}  // namespace tangram::cli
