// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports with ranks as threads, on as many GPUs as there are, possibly one: what their tests share.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm/exchange_tables.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/local_group.hpp"

namespace tangram::testing {

using cuda::check;
using cuda::DeviceBuffer;

constexpr int kHeads = 2;
constexpr int kDim = 8;

/// Before CUDA starts: several ranks may share a device here, so their streams must not share hardware queues (where
/// each has its own, any number will do), and no kernel may be loaded while another waits for it.
inline const bool kEnvironmentIsSet = [] {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return true;
}();

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

inline DeviceBuffer to_device(const HostTensor& host) {
  return DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes()));
}
inline TensorView view_of(const DeviceBuffer& buffer, const HostTensor& like) {
  TensorView view = const_cast<HostTensor&>(like).view();
  view.data = buffer.as<void>();
  return view;
}
inline HostTensor to_host(const ConstTensorView& view) {
  HostTensor host(view.dtype, view.rows, view.heads, view.dim);
  check(cudaMemcpy(host.view().data, view.data, static_cast<size_t>(host.bytes()), cudaMemcpyDeviceToHost), "copy");
  return host;
}

inline int num_gpus() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

/// NCCL wants a GPU for each rank; over copy engines several ranks may share one.
inline bool can_run(DeviceTransport transport, int size) {
  return transport != DeviceTransport::kNccl || size <= num_gpus();
}

/// Runs `rank_main` once per rank, on a thread and a device of its own choice.
inline void run_device_ranks(DeviceTransport transport, int size,
                             const std::function<void(DeviceCommunicator&)>& rank_main, double timeout_s = 20) {
  const int num_devices = num_gpus();
  run_local_ranks(
      size,
      [&](Communicator& control) {
        check(cudaSetDevice(control.rank() % num_devices), "cudaSetDevice");
        const auto communicator = make_device_communicator(control, {transport, timeout_s});
        rank_main(*communicator);
      },
      60);
}

inline std::string name_of(DeviceTransport transport) {
  return transport == DeviceTransport::kNccl ? "Nccl" : "CopyEngine";
}

/// One of the transports, with as many ranks as the test wants.
class DeviceTransports : public ::testing::TestWithParam<DeviceTransport> {
 protected:
  void run(int size, const std::function<void(DeviceCommunicator&)>& rank_main, double timeout_s = 20) const {
    run_device_ranks(GetParam(), size, rank_main, timeout_s);
  }
};
/// A ring: every rank sends all its rows to the next, in one range, so that copy engines move them.
inline DevicePassSpec ring_spec(int rank, int size, int64_t rows, const char* label) {
  DevicePassSpec spec;
  spec.label = label;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  spec.casts = {{{{next, {0, rows}, 0}}, {{previous, {0, rows}, 0}}}};
  spec.recv_buffers = {{rows, kHeads, kDim, DType::kFloat32}};
  return spec;
}

}  // namespace tangram::testing
