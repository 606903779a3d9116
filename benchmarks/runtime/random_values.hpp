// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Inputs of GPU benchmarks, made where they are used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tangram::bench {

/// Fills `count` bfloat16 values at `data` with values of mean 0 and variance 1, close to normal, that depend on `seed`
/// and the index alone.
void fill_random_bf16(void* data, int64_t count, uint64_t seed, cudaStream_t stream);

}  // namespace tangram::bench
