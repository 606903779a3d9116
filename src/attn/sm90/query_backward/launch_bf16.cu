// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The bfloat16 instances of the backward kernels for gathered keys.

#include "attn/sm90/query_backward/launch_impl.cuh"

namespace tangram::sm90::query_backward {

void launch_bf16(int head_dim, const Params& params, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream) {
  launch_element<__nv_bfloat16>(head_dim, params, pre_post, num_ctas, stream);
}

}  // namespace tangram::sm90::query_backward
