// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/current_device.hpp"

#ifdef TANGRAM_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#endif

#include <utility>

namespace tangram {

std::function<void()> on_current_device(std::function<void()> work) {
#ifdef TANGRAM_HAVE_CUDA
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  return [device, work = std::move(work)] {
    int before = 0;
    cuda::check(cudaGetDevice(&before), "cudaGetDevice");
    if (before != device) cuda::check(cudaSetDevice(device), "cudaSetDevice");
    work();
    if (before != device) cuda::check(cudaSetDevice(before), "cudaSetDevice");
  };
#else
  return work;
#endif
}

}  // namespace tangram
