// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/staging/cuda_memory.hpp"

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"

namespace tangram {

namespace {

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory() {
    cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
    cuda::check(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  ~CudaMemory() override { static_cast<void>(cudaStreamDestroy(stream_)); }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  void* allocate(size_t bytes) override {
    // Ranks that are threads of one process begin without a current device.
    cuda::check(cudaSetDevice(device_), "cudaSetDevice");
    void* memory = nullptr;
    cuda::check(cudaMalloc(&memory, bytes), "cudaMalloc");
    cuda::check(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync");
    return memory;
  }
  void release(void* memory) noexcept override { static_cast<void>(cudaFree(memory)); }

  void upload(void* device, size_t device_pitch, const void* from, const Pitched& host) override {
    copy(device, device_pitch, from, host.pitch, host, cudaMemcpyHostToDevice);
  }
  void download(void* to, const Pitched& host, const void* device, size_t device_pitch) override {
    copy(to, host.pitch, device, device_pitch, host, cudaMemcpyDeviceToHost);
  }
  void* stream() const override { return stream_; }
  void synchronize() override { cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  void copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, const Pitched& shape, cudaMemcpyKind kind) {
    if (to_pitch == shape.width && from_pitch == shape.width) {
      cuda::check(cudaMemcpyAsync(to, from, shape.width * shape.rows, kind, stream_), "cudaMemcpyAsync");
      return;
    }
    cuda::check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, shape.width, shape.rows, kind, stream_),
                "cudaMemcpy2DAsync");
  }

  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceMemory> make_cuda_memory() { return std::make_unique<CudaMemory>(); }

}  // namespace tangram
