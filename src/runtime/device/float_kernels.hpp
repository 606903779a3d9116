// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Copies of single float32 values that lie in columns: lse and sinks of some heads.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "runtime/runner.hpp"

namespace tangram::device {

/// Runs all copies, which do not depend on each other, in as few kernels as parameters allow.
void copy_floats(std::span<const FloatCopy> copies, cudaStream_t stream);

/// Before anything that waits for other ranks is on a stream of the current device: see cuda/load_kernel.hpp.
void load_float_kernels();

}  // namespace tangram::device
