// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Entry points of the compiled kernels, each in a translation unit of its own, so that they compile side by side. For
// exactly the head dim of a class there is one for each element type: whole tiles, split-KV, both with any GQA ratio,
// gathered runs. For any head dim of a class there is one.
#pragma once

#include "attn/sm90/forward/launch.hpp"

namespace tangram::sm90 {

void launch_forward_bf16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream);
void launch_forward_f16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream);
void launch_gathered_bf16(const ForwardVariant& variant, const GatheredParams& params, int num_ctas,
                          cudaStream_t stream);
void launch_gathered_f16(const ForwardVariant& variant, const GatheredParams& params, int num_ctas,
                         cudaStream_t stream);
void launch_any_pack_bf16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas,
                          cudaStream_t stream);
void launch_any_pack_f16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream);
void launch_split_kv_bf16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas,
                          cudaStream_t stream);
void launch_split_kv_f16(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream);

template <int kDimQk, int kDimV>
void launch_any_dim(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream);

}  // namespace tangram::sm90
