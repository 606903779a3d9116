// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/query_backward/launch.hpp"

#include "attn/sm90/common/kernel_sample.hpp"

namespace tangram::sm90::query_backward {

void launch(bool half, int head_dim, const Params& params, const PrePostParams& pre_post, int num_ctas,
            cudaStream_t stream) {
  TANGRAM_SM90_OF_ELEMENT(half, launch)(head_dim, params, pre_post, num_ctas, stream);
}

}  // namespace tangram::sm90::query_backward
