// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The float16 instances of the forward kernels for token indices.

#include "attn/sm90/tokens/launch_impl.cuh"

namespace tangram::sm90::tokens {

void launch_f16(const Params& params, int num_sms, cudaStream_t stream) {
  launch_element<__half>(params, num_sms, stream);
}

}  // namespace tangram::sm90::tokens
