// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/backward/launch.hpp"

#include "attn/sm90/backward/instances.hpp"

namespace tangram::sm90::backward {

void launch(const Variant& variant, const Params& params, const EdgeParams& edge, int num_ctas, cudaStream_t stream) {
  (variant.half ? launch_f16 : launch_bf16)(variant, params, edge, num_ctas, stream);
}

}  // namespace tangram::sm90::backward
