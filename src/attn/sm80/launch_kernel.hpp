// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How host code of sm80 launches a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/once_per_device.hpp"

namespace tangram::sm80 {

// A build for tests without a GPU holds a sample of the kernels: bfloat16 without softcap, of few classes.
#ifdef TANGRAM_SM80_SAMPLE
inline constexpr bool kAllKernels = false;
#else
inline constexpr bool kAllKernels = true;
#endif

/// Lets `kKernel` have so much dynamic shared memory. Throws CudaError with `what`.
template <auto kKernel, int kBytes>
void allow_shared_memory(const char* what) {
  static cuda::OncePerDevice is_allowed;  // the attribute belongs to the function as loaded on one device
  is_allowed.call(
      [&] { cuda::check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), what); });
}

template <typename Params>
void launch_kernel(void (*kernel)(Params), const Params& params, int64_t num_ctas, int num_threads, size_t smem_bytes,
                   cudaStream_t stream, const char* what) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  cuda::check(cudaLaunchKernelEx(&config, kernel, params), what);
}

}  // namespace tangram::sm80
