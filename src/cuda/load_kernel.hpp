// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Loading of kernels ahead of their first launch.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "cuda/once_per_device.hpp"

namespace tangram::cuda {

/// Loads a kernel on the current device unless this has been done. With lazy loading (CUDA Programming Guide) its first
/// launch would load it and might wait until running kernels end. That is forever if one of these waits for the
/// caller's later work. So what is launched behind a kernel that waits is loaded before that one is launched.
template <auto kKernel>
void load_kernel() {
  static OncePerDevice loaded;
  loaded.call([] {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kKernel), "cudaFuncGetAttributes");
  });
}

}  // namespace tangram::cuda
