// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one set of instances: before, backward and after kernel, chained by programmatic dependent launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/sm90/backward/kernel.cuh"
#include "attn/sm90/backward/large_kernel.cuh"
#include "attn/sm90/backward/launch.hpp"
#include "attn/sm90/backward/pre_posts.cuh"
#include "attn/sm90/common/launch_kernel.hpp"
#include "cuda/load_kernel.hpp"

namespace tangram::sm90::backward {

/// The small kernels before and after.
struct PrePostKernels {
  void (*before)(PrePostParams);
  void (*after)(PrePostParams);
  void (*load_after)();
};

template <typename Traits>
PrePostKernels pre_post_kernels() {
  using Element = typename Traits::Element;
  if constexpr (Traits::kAnyDim) {
    constexpr auto kAfter = after_any_dim_kernel<Element, Traits::kDimQk>;
    return {before_any_dim_kernel<Element, Traits::kDimQk, Traits::kDimV>, kAfter, cuda::load_kernel<kAfter>};
  } else {
    constexpr auto kAfter = after_kernel<Element, Traits::kDimQk>;
    return {before_kernel<Element, Traits::kDimQk>, kAfter, cuda::load_kernel<kAfter>};
  }
}

/// Launches the preprocess and postprocess kernels, and between them those that `launch_main` launches, if there are
/// work tiles. `launch_main` is told whether its first kernel may start before its predecessor has ended.
template <typename LaunchMain>
void launch_around(const PrePostKernels& pre_posts, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream,
                   const LaunchMain& launch_main) {
  pre_posts.load_after();  // the main kernel may wait for awaited keys
  const int64_t tiles = int64_t{pre_post.num_q_tiles} * pre_post.num_heads_q;
  launch_kernel(pre_posts.before, pre_post, std::max<int64_t>(tiles, 1), kPrePostThreads, 0, false, stream,
                "sm90 backward: first kernel launch");
  if (pre_post.keys_ready != nullptr) {
    cuda::check(cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(pre_post.keys_ready), 0), "cudaStreamWaitEvent");
  }
  // Behind an event it waits for all of the kernel in front of it.
  if (num_ctas > 0) launch_main(pre_post.keys_ready == nullptr);
  if (tiles > 0) {
    launch_kernel(pre_posts.after, pre_post, tiles, kPrePostThreads, 0, true, stream,
                  "sm90 backward: last kernel launch");
  }
}

template <typename Traits>
constexpr auto main_kernel() {
  if constexpr (Traits::kShape.backward_large) {
    return large_kernel<Traits>;
  } else {
    return backward_kernel<Traits>;
  }
}

template <typename Traits>
void launch_instance(const Params& params, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(Smem<Traits>);
  constexpr auto kKernel = main_kernel<Traits>();
  allow_shared_memory<kKernel, kSmemBytes>("cudaFuncSetAttribute(sm90 backward)");
  launch_around(pre_post_kernels<Traits>(), pre_post, num_ctas, stream, [&](bool dependent) {
    launch_kernel(kKernel, params, num_ctas, Traits::kThreads, kSmemBytes, dependent, stream,
                  "sm90 backward: main kernel launch");
  });
}

/// Like launch_instance, with one kernel for dv before one for dk and dq. Each takes all work tiles and joins their
/// head splits, with counters of its own.
template <typename DvTraits, typename DkTraits>
void launch_split(const Params& params, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream) {
  constexpr int kDvBytes = sizeof(Smem<DvTraits>), kDkBytes = sizeof(Smem<DkTraits>);
  allow_shared_memory<large_kernel<DvTraits>, kDvBytes>("cudaFuncSetAttribute(sm90 backward, dv)");
  allow_shared_memory<large_kernel<DkTraits>, kDkBytes>("cudaFuncSetAttribute(sm90 backward, dk)");
  cuda::load_kernel<large_kernel<DkTraits>>();
  launch_around(pre_post_kernels<DkTraits>(), pre_post, num_ctas, stream, [&](bool dependent) {
    Params of_dv = params;
    of_dv.ticket = params.ticket + 1;
    of_dv.split_semaphore = params.split_semaphore + pre_post.num_accum_tiles / 2;
    launch_kernel(large_kernel<DvTraits>, of_dv, num_ctas, DvTraits::kThreads, kDvBytes, dependent, stream,
                  "sm90 backward: dv kernel launch");
    launch_kernel(large_kernel<DkTraits>, params, num_ctas, DkTraits::kThreads, kDkBytes, true, stream,
                  "sm90 backward: dk kernel launch");
  });
}

template <typename Element, int kHeadDim>
void launch_shape(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                  cudaStream_t stream) {
  const auto run = variant.softcap ? (variant.deterministic ? launch_instance<Traits<Element, kHeadDim, true, true>>
                                                            : launch_instance<Traits<Element, kHeadDim, true, false>>)
                                   : (variant.deterministic ? launch_instance<Traits<Element, kHeadDim, false, true>>
                                                            : launch_instance<Traits<Element, kHeadDim, false, false>>);
  run(params, pre_post, num_ctas, stream);
}

template <typename Element>
void launch_element(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                    cudaStream_t stream) {
  with_exact_class(variant.head_dim, variant.head_dim_v,
                   [&]<int kHeadDim> { launch_shape<Element, kHeadDim>(variant, params, pre_post, num_ctas, stream); });
}

template <typename Element, int kDimQk, int kDimV, bool kSoftcap, bool kDeterministic>
void launch_any_dim_instance(const Params& params, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream) {
  if constexpr (shape_class(kDimQk, kDimV).backward_split) {
    launch_split<LargeTraits<Element, kDimQk, kDimV, kSoftcap, kDeterministic, LargePart::kDv>,
                 LargeTraits<Element, kDimQk, kDimV, kSoftcap, kDeterministic, LargePart::kDkDq>>(params, pre_post,
                                                                                                  num_ctas, stream);
  } else if constexpr (shape_class(kDimQk, kDimV).backward_large) {
    launch_instance<LargeTraits<Element, kDimQk, kDimV, kSoftcap, kDeterministic, LargePart::kAll>>(params, pre_post,
                                                                                                    num_ctas, stream);
  } else {
    launch_instance<AnyDimTraits<Element, kDimQk, kDimV, kSoftcap, kDeterministic>>(params, pre_post, num_ctas, stream);
  }
}

template <typename Element, int kDimQk, int kDimV>
void launch_any_dim_element(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                            cudaStream_t stream) {
  const auto run = variant.softcap
                       ? (variant.deterministic ? launch_any_dim_instance<Element, kDimQk, kDimV, kAllKernels, true>
                                                : launch_any_dim_instance<Element, kDimQk, kDimV, kAllKernels, false>)
                       : (variant.deterministic ? launch_any_dim_instance<Element, kDimQk, kDimV, false, true>
                                                : launch_any_dim_instance<Element, kDimQk, kDimV, false, false>);
  run(params, pre_post, num_ctas, stream);
}

template <int kDimQk, int kDimV>
void launch_any_dim(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
                    cudaStream_t stream) {
  require_in_sample(variant.half, variant.softcap);
  using Half = std::conditional_t<kAllKernels, __half, __nv_bfloat16>;
  (variant.half ? launch_any_dim_element<Half, kDimQk, kDimV>
                : launch_any_dim_element<__nv_bfloat16, kDimQk, kDimV>)(variant, params, pre_post, num_ctas, stream);
}

}  // namespace tangram::sm90::backward
