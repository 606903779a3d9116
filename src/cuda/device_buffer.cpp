// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/device_buffer.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::cuda {

cudaStream_t upload_stream() {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[device];
  if (stream == nullptr) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void upload(void* device, const void* host, size_t bytes) {
  const cudaStream_t stream = upload_stream();
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check(cudaMalloc(&data_, bytes), "cudaMalloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const AllowAllocationDuringCapture allow;  // garbage is collected at any time
  static_cast<void>(cudaFree(data_));
}

DeviceBuffer DeviceBuffer::copy_of(const void* host, size_t bytes) {
  DeviceBuffer buffer(bytes);
  if (bytes > 0) upload(buffer.data_, host, bytes);
  return buffer;
}

DeviceBuffer DeviceBuffer::zeros(size_t bytes) {
  DeviceBuffer buffer(bytes);
  if (bytes > 0) {
    const cudaStream_t stream = upload_stream();
    check(cudaMemsetAsync(buffer.data_, 0, bytes, stream), "cudaMemsetAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  return buffer;
}

}  // namespace tangram::cuda
