// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/forward/launch.hpp"

#include "attn/sm90/forward/instances.hpp"

namespace tangram::sm90 {

void launch_forward(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  (variant.half ? launch_forward_f16 : launch_forward_bf16)(variant, params, num_ctas, stream);
}

}  // namespace tangram::sm90
