// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Entry points of the compiled kernels, each in a translation unit of its own, so that they compile side by side.
// Kernels for exactly the head dim of a class: one for each element type; for any head dim of a class: one.
#pragma once

#include "attn/sm90/backward/launch.hpp"

namespace tangram::sm90::backward {

void launch_bf16(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                 cudaStream_t stream);
void launch_f16(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                cudaStream_t stream);

template <int kDimQk, int kDimV>
void launch_any_dim(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                    cudaStream_t stream);

}  // namespace tangram::sm90::backward
