// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The compiled backward kernels for gathered keys.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/sm90/query_backward/params.hpp"

namespace tangram::sm90::query_backward {

/// Launches the three kernels of one backward call, the middle one with `num_ctas` persistent CTAs. `half`: float16
/// instead of bfloat16; head_dim is 64 or 128. Throws CudaError naming the kernel.
void launch(bool half, int head_dim, const Params& params, const PrePostParams& pre_post, int num_ctas,
            cudaStream_t stream);

// Each in a translation unit of its own.
void launch_bf16(int head_dim, const Params& params, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream);
void launch_f16(int head_dim, const Params& params, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream);

}  // namespace tangram::sm90::query_backward
