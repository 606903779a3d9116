// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/event.hpp"

#include "cuda/check.hpp"

namespace tangram::cuda {

bool has_happened(cudaEvent_t event) {
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // else the next check of a launch would find it
    return false;
  }
  check(error, "cudaEventQuery");
  return true;
}

}  // namespace tangram::cuda
