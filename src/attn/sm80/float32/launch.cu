// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "attn/sm80/backward/pre_posts.cuh"
#include "attn/sm80/float32/backward.cuh"
#include "attn/sm80/float32/forward.cuh"
#include "attn/sm80/launch.hpp"
#include "attn/sm80/launch_kernel.hpp"
#include "cuda/load_kernel.hpp"
#include "tangram/error.hpp"

namespace tangram::sm80 {
namespace {

/// Calls run.template operator()<kDim>() for the class of the head dimensions. A sample has the smaller one alone.
template <typename Run>
void with_class(const Variant& variant, const Run& run) {
  const bool is_small = float32::class_of(variant.head_dim, variant.head_dim_v) == 128;
  if constexpr (kAllKernels) {
    if (!is_small) return run.template operator()<256>();
  } else if (!is_small || variant.softcap) {
    throw NotAvailable(
        "sm80: this build has float32 kernels without softcap for head dims up to 128 alone; "
        "TANGRAM_SM90_KERNELS=all compiles all");
  }
  run.template operator()<128>();
}

template <int kDim, bool kSoftcap>
void launch_backward_of(const backward::Params& params, const backward::PrePostParams& pre_post, int num_ctas,
                        cudaStream_t stream) {
  // The main kernel may wait for awaited keys: what is launched behind it is loaded before.
  cuda::load_kernel<float32::after_kernel<kDim>>();
  const int64_t tiles = int64_t{pre_post.num_q_tiles} * pre_post.num_heads_q;
  launch_kernel(backward::before_kernel<float, kDim>, pre_post, std::max<int64_t>(tiles, 1), backward::kThreads, 0,
                stream, "sm80 float32 backward: first kernel launch");
  if (pre_post.keys_ready != nullptr) {
    cuda::check(cudaStreamWaitEvent(stream, pre_post.keys_ready, 0), "cudaStreamWaitEvent");
  }
  if (num_ctas > 0) {
    launch_kernel(float32::backward_kernel<kDim, kSoftcap>, params, num_ctas, float32::kThreads,
                  sizeof(float32::BackwardSmem<kDim>), stream, "sm80 float32 backward: main kernel launch");
  }
  if (tiles > 0) {
    launch_kernel(float32::after_kernel<kDim>, pre_post, tiles, float32::kThreads, 0, stream,
                  "sm80 float32 backward: last kernel launch");
  }
}

}  // namespace

void launch_float32_forward(const Variant& variant, const ForwardParams& params, int num_multiprocessors,
                            cudaStream_t stream) {
  with_class(variant, [&]<int kDim> {
    constexpr int kBytes = sizeof(float32::ForwardSmem<kDim>);
    allow_shared_memory<float32::forward_kernel<kDim>, kBytes>("cudaFuncSetAttribute(sm80 float32 forward)");
    const int64_t tiles = int64_t{params.num_work_tiles} * params.num_groups;
    launch_kernel(float32::forward_kernel<kDim>, params, std::min<int64_t>(num_multiprocessors, tiles),
                  float32::kThreads, kBytes, stream, "sm80 float32 forward kernel launch");
  });
}

void launch_float32_backward(const Variant& variant, const backward::Params& params,
                             const backward::PrePostParams& pre_post, int num_multiprocessors, cudaStream_t stream) {
  with_class(variant, [&]<int kDim> {
    (variant.softcap ? launch_backward_of<kDim, kAllKernels>
                     : launch_backward_of<kDim, false>)(params, pre_post, num_multiprocessors, stream);
  });
}

}  // namespace tangram::sm80
