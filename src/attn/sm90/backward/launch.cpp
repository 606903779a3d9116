// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/backward/launch.hpp"

#include "attn/sm90/backward/instances.hpp"
#include "attn/sm90/common/kernel_sample.hpp"
#include "attn/sm90/common/shapes.hpp"

namespace tangram::sm90::backward {

void launch(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
            cudaStream_t stream) {
  if (has_exact_kernels(variant.head_dim, variant.head_dim_v)) {
    return TANGRAM_SM90_OF_ELEMENT(variant.half, launch)(variant, params, pre_post, num_ctas, stream);
  }
  with_shape_class(variant.head_dim, variant.head_dim_v, [&]<int kDimQk, int kDimV> {
    if constexpr (holds_any_dim(kDimQk)) {
      return launch_any_dim<kDimQk, kDimV>(variant, params, pre_post, num_ctas, stream);
    }
    refuse_outside_of_sample();
  });
}

}  // namespace tangram::sm90::backward
