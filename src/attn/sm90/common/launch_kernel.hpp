// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How the kernels of both passes are launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/once_per_device.hpp"
#include "tangram/error.hpp"

namespace tangram::sm90 {

inline constexpr int kSharedMemoryLimit = 227 * 1024;

// Kernels for any head dimensions of a class take most of the time to compile. A build for tests without a GPU holds a
// sample of them, those in bfloat16 without softcap (TANGRAM_SM90_KERNELS in cmake/TangramOptions.cmake).
#ifdef TANGRAM_SM90_SAMPLE
inline constexpr bool kAllKernels = false;
#else
inline constexpr bool kAllKernels = true;
#endif

/// Throws NotAvailable unless kernels for any head dimensions are compiled for this.
inline void require_in_sample(bool half, bool softcap) {
  if (kAllKernels || (!half && !softcap)) return;
  throw NotAvailable(
      "sm90: for head dims other than 64 and 128 this build has kernels in bfloat16 without softcap alone; "
      "TANGRAM_SM90_KERNELS=all compiles all");
}

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
