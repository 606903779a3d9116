// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The bfloat16 instances of the forward kernels for token indices.

#include "attn/sm90/tokens/launch_impl.cuh"

namespace tangram::sm90::tokens {

void launch_bf16(const Params& params, int num_sms, cudaStream_t stream) {
  launch_element<__nv_bfloat16>(params, num_sms, stream);
}

}  // namespace tangram::sm90::tokens
