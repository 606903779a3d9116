// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Turns failures of CUDA runtime calls and kernel launches into CudaError.
#pragma once

#include <cuda_runtime_api.h>

namespace tangram::cuda {

/// Throws CudaError `what: <name>: <description>` unless `status` is success.
void check(cudaError_t status, const char* what);

}  // namespace tangram::cuda
