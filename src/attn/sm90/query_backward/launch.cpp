// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/query_backward/launch.hpp"

namespace tangram::sm90::query_backward {

void launch(bool half, int head_dim, const Params& params, const PrePostParams& pre_post, int num_ctas,
            cudaStream_t stream) {
  (half ? launch_f16 : launch_bf16)(head_dim, params, pre_post, num_ctas, stream);
}

}  // namespace tangram::sm90::query_backward
