// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What compute-sanitizer's initcheck says about memory that one kernel writes and the next one reads:
// `initcheck_reproducer stores|bulk|unwritten`, by ordinary stores, by a bulk copy from shared memory (as the backward
// pass on Hopper writes its sums of dq), or not at all. The program checks what was read; tools/sanitize_gpu.sh runs
// initcheck over it. See docs/design/gpu_backends.md.

#include <cstdio>
#include <cstring>

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void store_kernel(float* values) { values[threadIdx.x] = static_cast<float>(threadIdx.x); }

__global__ void bulk_kernel(float* values) {
  __shared__ alignas(128) float staged[kThreads];
  staged[threadIdx.x] = static_cast<float>(threadIdx.x);
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::bulk_store(values, staged, sizeof(staged));
  ptx::tma_store_commit();
  ptx::tma_store_wait<0>();
}

__global__ void read_kernel(const float* values, float* copies) { copies[threadIdx.x] = values[threadIdx.x] + 1; }

/// `write` is null for memory that no kernel writes.
int run(void (*write)(float*)) {
  const DeviceBuffer values(kThreads * sizeof(float)), copies = DeviceBuffer::zeros(kThreads * sizeof(float));
  if (write != nullptr) write<<<1, kThreads>>>(values.as<float>());
  read_kernel<<<1, kThreads>>>(values.as<float>(), copies.as<float>());
  check(cudaGetLastError(), "read_kernel");
  float host[kThreads] = {};
  check(cudaMemcpy(host, copies.as<void>(), sizeof(host), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int i = 0; i < kThreads && write != nullptr; ++i) {
    if (host[i] != static_cast<float>(i + 1)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tangram::cuda

int main(int argc, char** argv) {
  const char* mode = argc == 2 ? argv[1] : "";
  if (std::strcmp(mode, "stores") == 0) return tangram::cuda::run(tangram::cuda::store_kernel);
  if (std::strcmp(mode, "bulk") == 0) return tangram::cuda::run(tangram::cuda::bulk_kernel);
  if (std::strcmp(mode, "unwritten") == 0) return tangram::cuda::run(nullptr);
  std::fprintf(stderr, "usage: initcheck_reproducer stores|bulk|unwritten\n");
  return 2;
}
