// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/forward/launch.hpp"

#include "attn/sm90/forward/instances.hpp"

namespace tangram::sm90 {

void launch_forward(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  if (has_exact_kernels(variant.head_dim, variant.head_dim_v)) {
    if (variant.any_pack) {
      return (variant.half ? launch_any_pack_f16 : launch_any_pack_bf16)(variant, params, num_ctas, stream);
    }
    const auto launch = variant.parts ? (variant.half ? launch_split_kv_f16 : launch_split_kv_bf16)
                                      : (variant.half ? launch_forward_f16 : launch_forward_bf16);
    return launch(variant, params, num_ctas, stream);
  }
  with_shape_class(variant.head_dim, variant.head_dim_v,
                   [&]<int kDimQk, int kDimV> { launch_any_dim<kDimQk, kDimV>(variant, params, num_ctas, stream); });
}

void launch_gathered(const ForwardVariant& variant, const GatheredParams& params, int num_ctas, cudaStream_t stream) {
  (variant.half ? launch_gathered_f16 : launch_gathered_bf16)(variant, params, num_ctas, stream);
}

}  // namespace tangram::sm90
