// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm80/launch.hpp"

#include "attn/sm80/shapes.hpp"
#include "tangram/error.hpp"

namespace tangram::sm80 {
namespace {

#ifdef TANGRAM_SM80_SAMPLE
constexpr bool in_sample(int head_dim, int head_dim_v) {
  return head_dim == head_dim_v && (head_dim == 64 || head_dim == 128);
}
#else
constexpr bool in_sample(int, int) { return true; }
#endif

void require_compiled(const Variant& variant) {
#ifdef TANGRAM_SM80_SAMPLE
  const ShapeClass& row = shape_class(variant.head_dim, variant.head_dim_v);
  const bool large = variant.tier == SharedMemoryTier::kLarge;
  if (variant.dtype == DType::kBFloat16 && !variant.softcap && large && in_sample(row.head_dim, row.head_dim_v)) return;
  throw NotAvailable(
      "sm80: this build has 16-bit kernels in bfloat16 without softcap alone, for head dims up to 64 and from 104 to "
      "128, on "
      "GPUs with 163 KB of shared memory a block; "
      "TANGRAM_SM90_KERNELS=all compiles all");
#else
  static_cast<void>(variant);
#endif
}

}  // namespace

void launch_forward(const Variant& variant, const ForwardParams& params, int num_multiprocessors, cudaStream_t stream) {
  if (variant.dtype == DType::kFloat32) return launch_float32_forward(variant, params, num_multiprocessors, stream);
  require_compiled(variant);
  with_shape_class(variant.head_dim, variant.head_dim_v, [&]<int kDimQk, int kDimV> {
    if constexpr (in_sample(kDimQk, kDimV)) {
      launch_forward_class<kDimQk, kDimV>(variant, params, num_multiprocessors, stream);
    }
  });
}

void launch_backward(const Variant& variant, const backward::Params& params, const backward::PrePostParams& pre_post,
                     int num_multiprocessors, cudaStream_t stream) {
  if (variant.dtype == DType::kFloat32)
    return launch_float32_backward(variant, params, pre_post, num_multiprocessors, stream);
  require_compiled(variant);
  with_shape_class(variant.head_dim, variant.head_dim_v, [&]<int kDimQk, int kDimV> {
    if constexpr (in_sample(kDimQk, kDimV)) {
      launch_backward_class<kDimQk, kDimV>(variant, params, pre_post, num_multiprocessors, stream);
    }
  });
}

}  // namespace tangram::sm80
