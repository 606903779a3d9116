// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Times of attention calls on the CPU over masks of unlike shape, and the constants that explain them.
#pragma once

#include <functional>

#include "cli/measure/head_dims.hpp"
#include "cli/measure/kernel_fit.hpp"

namespace tangram::cli {

/// Measures backend `cpu` with one thread on the calling thread. `barrier` is called before each series, so that ranks
/// measure at the same time.
KernelMeasurement measure_kernels(DType dtype, const HeadDims& dims, int64_t max_rows, int num_repeats,
                                  const std::function<void()>& barrier);

}  // namespace tangram::cli
