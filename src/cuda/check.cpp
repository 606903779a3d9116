// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/check.hpp"

#include <fmt/core.h>

#include "tangram/error.hpp"

namespace tangram::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw CudaError(
      fmt::format("{}: must succeed (got {}: {})", what, cudaGetErrorName(status), cudaGetErrorString(status)));
}

}  // namespace tangram::cuda
