// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How kernels with one parameter are launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/check.hpp"

namespace tangram::cuda {

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
  check(cudaLaunchKernelEx(&config, kernel, params), what);
}

}  // namespace tangram::cuda
