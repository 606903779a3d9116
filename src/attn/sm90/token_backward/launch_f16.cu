// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The float16 instances of the backward kernels for token indices.

#include "attn/sm90/token_backward/launch_impl.cuh"

namespace tangram::sm90::token_backward {

void launch_f16(int head_dim, const Call& call, cudaStream_t stream) { launch_element<__half>(head_dim, call, stream); }

}  // namespace tangram::sm90::token_backward
