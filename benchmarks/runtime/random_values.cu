// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <cuda_bf16.h>

#include "cuda/check.hpp"
#include "random_values.hpp"

namespace tangram::bench {
namespace {

__device__ uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The sum of four uniform 16-bit numbers, centred and scaled.
__global__ void fill_kernel(__nv_bfloat16* data, int64_t count, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint64_t bits = splitmix64(seed * 0x632be59bd9b4e019 + static_cast<uint64_t>(i));
    const auto sum = static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    data[i] = __float2bfloat16((sum - 131070.0f) / 37837.227f);
  }
}

}  // namespace

void fill_random_bf16(void* data, int64_t count, uint64_t seed, cudaStream_t stream) {
  fill_kernel<<<1056, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(data), count, seed);
  cuda::check(cudaGetLastError(), "fill kernel launch");
}

}  // namespace tangram::bench
