// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The float16 instances of the backward kernels.

#include "attn/sm90/backward/instances.hpp"
#include "attn/sm90/backward/launch_impl.cuh"

namespace tangram::sm90::backward {

void launch_f16(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                cudaStream_t stream) {
  launch_element<__half>(variant, params, pre_post, num_ctas, stream);
}

}  // namespace tangram::sm90::backward
