// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/forward/launch.hpp"

#include "attn/sm90/common/kernel_sample.hpp"
#include "attn/sm90/forward/instances.hpp"

namespace tangram::sm90 {

void launch_forward(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  if (has_exact_kernels(variant.head_dim, variant.head_dim_v)) {
    if (variant.any_pack) {
#ifdef TANGRAM_SM90_SAMPLE
      refuse_outside_of_sample();
#else
      return TANGRAM_SM90_OF_ELEMENT(variant.half, launch_any_pack)(variant, params, num_ctas, stream);
#endif
    }
    const auto launch = variant.parts ? TANGRAM_SM90_OF_ELEMENT(variant.half, launch_split_kv)
                                      : TANGRAM_SM90_OF_ELEMENT(variant.half, launch_forward);
    return launch(variant, params, num_ctas, stream);
  }
  with_shape_class(variant.head_dim, variant.head_dim_v, [&]<int kDimQk, int kDimV> {
    if constexpr (holds_any_dim(kDimQk)) return launch_any_dim<kDimQk, kDimV>(variant, params, num_ctas, stream);
    refuse_outside_of_sample();
  });
}

void launch_gathered(const ForwardVariant& variant, const GatheredParams& params, int num_ctas, cudaStream_t stream) {
  TANGRAM_SM90_OF_ELEMENT(variant.half, launch_gathered)(variant, params, num_ctas, stream);
}

}  // namespace tangram::sm90
