// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device memory with an owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace tangram::cuda {

/// Upload stream of the current device. It has copies alone, so that they wait for no kernel. Throws CudaError.
cudaStream_t upload_stream();

/// Copies `bytes` of host memory to memory of the current device. The copy has ended on return, for kernels on any
/// stream, and has waited for none of them. (cudaMemcpy returns once pageable memory has been read, and waits for all
/// that the default stream waits for.) Throws CudaError.
void upload(void* device, const void* host, size_t bytes);

/// Owns `bytes` of device memory (possibly none), move-only. Freed with cudaFree, which waits for the device.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Allocates; throws CudaError.
  explicit DeviceBuffer(size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  /// A buffer that holds a copy of `bytes` of host memory; the copy has ended on return.
  static DeviceBuffer copy_of(const void* host, size_t bytes);
  template <class T>
  static DeviceBuffer copy_of(const std::vector<T>& values) {
    return copy_of(values.data(), values.size() * sizeof(T));
  }
  /// A buffer of zero bytes; the fill has ended on return.
  static DeviceBuffer zeros(size_t bytes);

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tangram::cuda
