// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How the kernels of both passes are launched.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "cuda/launch_kernel.hpp"
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

using cuda::launch_kernel;

}  // namespace tangram::sm90
