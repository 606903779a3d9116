// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/token_backward/launch.hpp"

#include "attn/sm90/common/kernel_sample.hpp"

namespace tangram::sm90::token_backward {

void launch(bool half, int head_dim, const Call& call, cudaStream_t stream) {
  TANGRAM_SM90_OF_ELEMENT(half, launch)(head_dim, call, stream);
}

}  // namespace tangram::sm90::token_backward
