// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Times of attention calls over masks of unlike shape, and the constants that explain them.
#pragma once

#include <functional>

#include "cli/machine_file.hpp"
#include "machine/fit.hpp"

namespace tangram::cli {

struct KernelMeasurement {
  KernelEntry entry;
  KernelFit forward;
  KernelFit backward;
};

/// Measures backend `cpu` with one thread on the calling thread. `barrier` is called before each series, so that ranks
/// measure at the same time.
KernelMeasurement measure_kernels(DType dtype, int head_dim, int64_t max_rows, int num_repeats,
                                  const std::function<void()>& barrier);

}  // namespace tangram::cli
