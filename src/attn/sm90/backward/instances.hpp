// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// One entry point for each element type, so that the instances compile side by side.
#pragma once

#include "attn/sm90/backward/launch.hpp"

namespace tangram::sm90::backward {

void launch_bf16(const Variant& variant, const Params& params, const EdgeParams& edge, int num_ctas,
                 cudaStream_t stream);
void launch_f16(const Variant& variant, const Params& params, const EdgeParams& edge, int num_ctas,
                cudaStream_t stream);

}  // namespace tangram::sm90::backward
