// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The bfloat16 instances of the forward kernel for parts of query tiles.

#include "attn/sm90/forward/instances.hpp"
#include "attn/sm90/forward/launch_impl.cuh"

namespace tangram::sm90 {

void launch_split_kv_bf16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas,
                          cudaStream_t stream) {
  launch_element<__nv_bfloat16, true>(variant, params, num_ctas, stream);
}

}  // namespace tangram::sm90
