// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What compute-sanitizer's memcheck says about a matmul whose operand repeats itself: both halves of the reduction are
// the same 1 KB, by a descriptor with leading offset 0, as the backward kernel adds lse and delta to scores.
// `memcheck_reproducer inside|end`: with 1 KB of NaN behind the operand, or with the operand at the end of shared
// memory. Were the second half read from behind, the program would see NaN. See docs/design/gpu_backends.md.

#include <cuda_bf16.h>

#include <cstdio>
#include <cstring>

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::cuda {
namespace {

constexpr int kThreads = 128, kColumns = 64, kDepth = 16;
constexpr int kLeftBytes = 64 * kDepth * 2;             // ones
constexpr int kRightBytes = kColumns * kDepth / 2 * 2;  // half of the reduction

/// A product of ones and of an operand that holds n in all of its column n; kBehind bytes of NaN follow the operand.
template <int kBehind>
__global__ void product_kernel(float* sums) {
  extern __shared__ __align__(128) unsigned char smem[];
  auto* values = reinterpret_cast<__nv_bfloat16*>(smem);
  for (int i = threadIdx.x; i < (kLeftBytes + kRightBytes + kBehind) / 2; i += kThreads) {
    const int right = i - kLeftBytes / 2;  // 16 bytes, half of the reduction, of one column after the other
    const float nan = __int_as_float(0x7fc00000);
    values[i] = __float2bfloat16(right < 0 ? 1.0f : right < kRightBytes / 2 ? static_cast<float>(right / 8) : nan);
  }
  ptx::fence_proxy_async();
  __syncthreads();
  const uint64_t left = ptx::wgmma_descriptor_plain(ptx::smem_address(smem), 1024, 128);
  const uint64_t right = ptx::wgmma_descriptor_plain(ptx::smem_address(smem + kLeftBytes), 0, 128);
  float d[kColumns / 2];
  ptx::wgmma_fence();
  ptx::wgmma_ss<__nv_bfloat16, kColumns>(d, left, right, false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(d);
  for (int i = 0; i < kColumns / 2; ++i) sums[threadIdx.x * (kColumns / 2) + i] = d[i];
}

template <int kBehind>
int run() {
  constexpr int kSums = kThreads * kColumns / 2;
  const DeviceBuffer sums = DeviceBuffer::zeros(kSums * sizeof(float));
  product_kernel<kBehind><<<1, kThreads, kLeftBytes + kRightBytes + kBehind>>>(sums.as<float>());
  check(cudaGetLastError(), "product_kernel");
  float host[kSums];
  check(cudaMemcpy(host, sums.as<void>(), sizeof(host), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int i = 0; i < kSums; ++i) {
    const int thread = i / (kColumns / 2), at = i % (kColumns / 2);
    const int column = at / 4 * 8 + thread % 4 * 2 + at % 2;
    if (host[i] != static_cast<float>(kDepth * column)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tangram::cuda

int main(int argc, char** argv) {
  const char* mode = argc == 2 ? argv[1] : "";
  if (std::strcmp(mode, "inside") == 0) return tangram::cuda::run<1024>();
  if (std::strcmp(mode, "end") == 0) return tangram::cuda::run<0>();
  std::fprintf(stderr, "usage: memcheck_reproducer inside|end\n");
  return 2;
}
