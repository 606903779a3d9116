// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The compiled kernels for token indices.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/sm90/tokens/params.hpp"

namespace tangram::sm90::tokens {

/// Query heads of a work tile at most: more share a list in parts.
inline constexpr int kMostRows = 2 * kRowsOfWarpgroup;

/// Launches the forward kernel on `num_sms` multiprocessors at most. Throws CudaError.
void launch_bf16(const Params& params, int num_sms, cudaStream_t stream);
void launch_f16(const Params& params, int num_sms, cudaStream_t stream);

/// Launches the check of lists.
void launch_check(const CheckParams& params, int num_sms, cudaStream_t stream);

}  // namespace tangram::sm90::tokens
