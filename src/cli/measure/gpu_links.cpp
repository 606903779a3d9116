// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/gpu_links.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/text_table.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "machine/fit.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

namespace {

// Rows as of K or V of eight heads.
constexpr int kHeads = 8, kDim = 128;
constexpr int64_t kRowBytes = kHeads * kDim * 2;
constexpr int64_t kMaxRows = int64_t{32768} + 64;

struct Shape {
  int64_t num_copies;
  int64_t rows;  // of each
};
// 128 KiB to 64 MiB, in one range and in several, none so short that a kernel would move it.
constexpr Shape kShapes[] = {{1, 64},   {1, 512},  {1, 2048}, {1, 8192},  {1, 32768},
                             {8, 1024}, {4, 4096}, {16, 512}, {32, 1024}, {64, 512}};

/// `num_copies` ranges of rows to the rank `distance` on, apart from each other on both sides, so that none are joined.
DevicePassSpec ring_spec(int rank, int size, int distance, const Shape& shape) {
  const int next = (rank + distance) % size, previous = (rank + size - distance) % size;
  Exchange exchange;
  for (int64_t c = 0; c < shape.num_copies; ++c) {
    const int64_t begin = c * (shape.rows + 1);
    exchange.sends.push_back({next, {begin, begin + shape.rows}, begin});
    exchange.recvs.push_back({previous, {begin, begin + shape.rows}, begin});
  }
  DevicePassSpec spec;
  spec.label = "measure";
  spec.casts = {exchange};
  spec.recv_buffers = {{kMaxRows, kHeads, kDim, DType::kBFloat16}};
  return spec;
}

/// A stream and two events on it.
class Stopwatch {
 public:
  Stopwatch() {
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    static_cast<void>(cudaEventDestroy(end_));
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  Stopwatch(const Stopwatch&) = delete;

  template <class Work>
  double seconds(const Work& work) {
    cuda::check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    work(stream_);
    cuda::check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms * 1e-3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// A sample of the slowest rank, in the fastest of some repetitions: what disturbs a transfer only makes it longer.
LinkSample measure_shape(DeviceCommunicator& comm, const Shape& shape, int distance, const cuda::DeviceBuffer& source,
                         int num_repeats) {
  constexpr float kLongEnough_s = 0.1f;  // slow networks need no ten epochs
  int num_epochs = 1;
  const auto pass = comm.prepare_pass(ring_spec(comm.rank(), comm.size(), distance, shape));
  const ConstTensorView view{source.as<void>(), DType::kBFloat16, kMaxRows, kHeads, kDim, kHeads * kDim, kDim};
  Stopwatch watch;
  float fastest = 1e9f;
  for (int i = 0; i <= num_repeats; ++i) {
    comm.control().barrier("measure");
    float seconds[] = {static_cast<float>(watch.seconds([&](cudaStream_t stream) {
      for (int epoch = 0; epoch < num_epochs; ++epoch) {
        pass->begin(stream);
        pass->cast(0, {&view, 1}, stream);
        pass->wait_group_cast(0, stream);
        pass->end(stream);
      }
    }))};
    comm.control().all_reduce(seconds, ReduceOp::kMax, "measure");
    if (i > 0) fastest = std::min(fastest, seconds[0] / static_cast<float>(num_epochs));
    if (i == 0) num_epochs = std::clamp(static_cast<int>(kLongEnough_s / seconds[0]), 1, 10);
  }
  comm.check();
  comm.control().barrier("measured");
  return {static_cast<double>(shape.num_copies * shape.rows * kRowBytes), static_cast<double>(shape.num_copies),
          fastest};
}

LinkMeasurement measure_shapes(DeviceCommunicator& comm, int distance, int num_repeats) {
  const cuda::DeviceBuffer source = cuda::DeviceBuffer::zeros(static_cast<size_t>(kMaxRows * kRowBytes));
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  LinkMeasurement result;
  for (const Shape& shape : kShapes) {
    result.samples.push_back(measure_shape(comm, shape, distance, source, num_repeats));
  }
  result.fit = fit_link(result.samples);
  return result;
}

void measure_transport(Communicator& control, DeviceTransport transport, int num_repeats, Measured& measured) {
  const std::string name(to_string(transport));
  std::unique_ptr<DeviceCommunicator> comm;
  try {
    comm = make_device_communicator(control, {.transport = transport});
  } catch (const NotAvailable& error) {  // alike on all ranks
    measured.notes.push_back(fmt::format("{}: not measured: {}", name, error.what()));
    return;
  }
  const LinkFit fit = measure_shapes(*comm, 1, num_repeats).fit;
  LinkEntry entry{name, false, CommEngine::kCopyEngine, "measured", fit.link, 0, 0};
  if (transport == DeviceTransport::kNccl) {
    entry.engine = CommEngine::kWorkers;
    entry.comm_workers = comm->prepare_pass(ring_spec(comm->rank(), comm->size(), 1, kShapes[0]))->transfer_sms();
    entry.worker_link_bytes_per_s = fit.link.bytes_per_s / entry.comm_workers;
  }
  measured.file.links.push_back(entry);
  measured.notes.push_back(
      fmt::format("{}: {:.1f} GB/s each way, {} a copy, {} a call; model off by {:.0f} % (root "
                  "mean square)",
                  name, fit.link.bytes_per_s * 1e-9, seconds_text(fit.link.latency_s), seconds_text(fit.call_s),
                  100 * fit.rms_error));
  control.barrier("transport measured");
}

}  // namespace

GpuLink measure_gpu_link(Communicator& control, const DeviceCommunicatorConfig& config, int num_repeats) {
  const int distance = ring_distance(control);
  const std::unique_ptr<DeviceCommunicator> comm = make_device_communicator(control, config);
  GpuLink link{measure_shapes(*comm, distance, num_repeats), std::string(comm->name()), 0};
  link.ctas = comm->prepare_pass(ring_spec(comm->rank(), comm->size(), distance, kShapes[0]))->transfer_sms();
  control.barrier("link measured");
  return link;
}

Measured measure_gpu_links(Communicator& control, int num_repeats) {
  Measured measured;
  measured.file.ranks_per_node = measured.file.devices_per_node = control.size();
  for (const DeviceTransport transport : {DeviceTransport::kCopyEngine, DeviceTransport::kNccl}) {
    measure_transport(control, transport, num_repeats, measured);
  }
  return measured;
}

}  // namespace tangram::cli
