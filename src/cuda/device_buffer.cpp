// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/device_buffer.hpp"

#include "cuda/check.hpp"

namespace tangram::cuda {

void upload(void* device, const void* host, size_t bytes) {
  check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check(cudaMalloc(&data_, bytes), "cudaMalloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

DeviceBuffer DeviceBuffer::copy_of(const void* host, size_t bytes) {
  DeviceBuffer buffer(bytes);
  if (bytes > 0) upload(buffer.data_, host, bytes);
  return buffer;
}

DeviceBuffer DeviceBuffer::zeros(size_t bytes) {
  DeviceBuffer buffer(bytes);
  if (bytes > 0) {
    check(cudaMemset(buffer.data_, 0, bytes), "cudaMemset");
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  return buffer;
}

}  // namespace tangram::cuda
