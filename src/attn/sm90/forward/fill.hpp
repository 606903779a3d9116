// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Initial values that a launch needs in device memory.
#pragma once

#include <cuda_runtime_api.h>

namespace tangram::sm90 {

/// Sets `count` floats to minus infinity, in stream order.
void fill_minus_infinity(float* values, int count, cudaStream_t stream);

}  // namespace tangram::sm90
