// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/token_backward/launch.hpp"

namespace tangram::sm90::token_backward {

void launch(bool half, int head_dim, const Call& call, cudaStream_t stream) {
  (half ? launch_f16 : launch_bf16)(head_dim, call, stream);
}

}  // namespace tangram::sm90::token_backward
