// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How the kernels of both passes are launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/once_per_device.hpp"

namespace tangram::sm90 {

inline constexpr int kSharedMemoryLimit = 227 * 1024;

/// Lets `kKernel` have so much dynamic shared memory. Throws CudaError with `what`.
template <auto kKernel, int kBytes>
void allow_shared_memory(const char* what) {
  static_assert(kBytes <= kSharedMemoryLimit);
  // The attribute belongs to the function as loaded on one device: threads of a process may use several.
  static cuda::OncePerDevice is_allowed;
  is_allowed.call(
      [&] { cuda::check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), what); });
}

/// `dependent`: may start before the kernel in front of it has ended; it then waits for it itself. Throws CudaError
/// with `what`.
template <typename Params>
void launch_kernel(void (*kernel)(Params), const Params& params, int64_t num_ctas, int num_threads, size_t smem_bytes,
                   bool dependent, cudaStream_t stream, const char* what) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  cuda::check(cudaLaunchKernelEx(&config, kernel, params), what);
}

}  // namespace tangram::sm90
