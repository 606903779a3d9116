// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The float16 instances of the forward kernel for tiles of any number of query heads.

#include "attn/sm90/forward/instances.hpp"
#include "attn/sm90/forward/launch_impl.cuh"

namespace tangram::sm90 {

void launch_any_pack_f16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas,
                         cudaStream_t stream) {
  launch_any_pack_element<__half>(variant, params, num_ctas, stream);
}

}  // namespace tangram::sm90
