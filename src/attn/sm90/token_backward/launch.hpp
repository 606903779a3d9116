// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The compiled backward kernels for token indices.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/sm90/token_backward/params.hpp"

namespace tangram::sm90::token_backward {

/// All kernels of a call, which is edge.num_parts parts. What says which work tiles a part has is filled in by launch.
struct Call {
  PrePostParams pre_post;
  Params params;
  int32_t work_tiles_of_part;
  int32_t num_ctas;       ///< at most; of the main kernel
  float* shares[2] = {};  ///< of deterministic calls: CollectParams::shares of a part; else null
};

/// Launches the kernels of one backward call. `half`: float16 instead of bfloat16; head_dim is 64 or 128, of
/// deterministic calls 128. Throws CudaError naming the kernel.
void launch(bool half, int head_dim, const Call& call, cudaStream_t stream);

// Each in a translation unit of its own.
void launch_bf16(int head_dim, const Call& call, cudaStream_t stream);
void launch_f16(int head_dim, const Call& call, cudaStream_t stream);
void launch_lists(const ListParams& params, int32_t num_work_tiles, cudaStream_t stream);
void launch_collect(const CollectParams& params, cudaStream_t stream);

}  // namespace tangram::sm90::token_backward
