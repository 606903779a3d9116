// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Interfaces that are compiled without CUDA pass streams as void*.
#pragma once

#include <cuda_runtime_api.h>

namespace tangram::cuda {

inline cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace tangram::cuda
