// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What is asked of CUDA events.
#pragma once

#include <cuda_runtime_api.h>

namespace tangram::cuda {

/// Whether all work before the last record of `event` is done; does not wait. Throws CudaError where that work failed.
bool has_happened(cudaEvent_t event);

}  // namespace tangram::cuda
