// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/forward/fill.hpp"
#include "cuda/check.hpp"

namespace tangram::sm90 {
namespace {

__global__ void fill_kernel(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = __int_as_float(0xff800000);
}

}  // namespace

void fill_minus_infinity(float* values, int count, cudaStream_t stream) {
  fill_kernel<<<(count + 127) / 128, 128, 0, stream>>>(values, count);
  cuda::check(cudaGetLastError(), "fill_minus_infinity launch");
}

}  // namespace tangram::sm90
