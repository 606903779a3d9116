// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels of one class of head dimensions.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/sm80/backward/kernel.cuh"
#include "attn/sm80/backward/pre_posts.cuh"
#include "attn/sm80/forward/kernel.cuh"
#include "attn/sm80/launch.hpp"
#include "attn/sm80/launch_kernel.hpp"
#include "cuda/check.hpp"
#include "cuda/load_kernel.hpp"

namespace tangram::sm80 {

template <typename Traits>
void launch_forward_instance(const ForwardParams& params, int num_multiprocessors, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(ForwardSmem<Traits>);
  static_assert(kSmemBytes <= kTierKb[static_cast<int>(Traits::kTier)] * 1024);
  allow_shared_memory<forward_kernel<Traits>, kSmemBytes>("cudaFuncSetAttribute(sm80 forward)");
  const int64_t most = int64_t{num_multiprocessors} * Traits::kCtasPerMultiprocessor;
  launch_kernel(forward_kernel<Traits>, params, std::min(most, int64_t{params.num_work_tiles} * params.num_groups),
                Traits::kThreads, kSmemBytes, stream, "sm80 forward kernel launch");
}

template <typename Traits>
void launch_backward_instance(const backward::Params& params, const backward::PrePostParams& pre_post, int num_ctas,
                              cudaStream_t stream) {
  using Element = typename Traits::Element;
  constexpr int kSmemBytes = sizeof(backward::Smem<Traits>);
  static_assert(kSmemBytes <= kTierKb[static_cast<int>(Traits::kTier)] * 1024);
  allow_shared_memory<backward::backward_kernel<Traits>, kSmemBytes>("cudaFuncSetAttribute(sm80 backward)");
  // The main kernel may wait for awaited keys: what is launched behind it is loaded before.
  cuda::load_kernel<backward::after_kernel<Element, Traits::kDimQk>>();
  const int64_t tiles = int64_t{pre_post.num_q_tiles} * pre_post.num_heads_q;
  launch_kernel(backward::before_kernel<Element, Traits::kDimQk>, pre_post, std::max<int64_t>(tiles, 1),
                backward::kThreads, 0, stream, "sm80 backward: first kernel launch");
  if (pre_post.keys_ready != nullptr) {
    cuda::check(cudaStreamWaitEvent(stream, pre_post.keys_ready, 0), "cudaStreamWaitEvent");
  }
  if (num_ctas > 0) {
    launch_kernel(backward::backward_kernel<Traits>, params, num_ctas, backward::kThreads, kSmemBytes, stream,
                  "sm80 backward: main kernel launch");
  }
  if (tiles > 0) {
    launch_kernel(backward::after_kernel<Element, Traits::kDimQk>, pre_post, tiles, backward::kThreads, 0, stream,
                  "sm80 backward: last kernel launch");
  }
}

/// Calls run.template operator()<Element, kSoftcap>() for those of the variant.
template <typename Run>
void with_instance(const Variant& variant, const Run& run) {
  using Half = std::conditional_t<kAllKernels, __half, __nv_bfloat16>;
  if (variant.dtype == DType::kFloat16) {
    variant.softcap ? run.template operator()<Half, kAllKernels>() : run.template operator()<Half, false>();
  } else {
    variant.softcap ? run.template operator()<__nv_bfloat16, kAllKernels>()
                    : run.template operator()<__nv_bfloat16, false>();
  }
}

template <int kDimQk, int kDimV>
void launch_forward_class(const Variant& variant, const ForwardParams& params, int num_multiprocessors,
                          cudaStream_t stream) {
  with_instance(variant, [&]<typename Element, bool kSoftcap> {
    using Large = ForwardTraits<Element, kDimQk, kDimV, kSoftcap>;
    if constexpr (kAllKernels && has_small_forward(kDimQk, kDimV)) {
      using Small = ForwardTraits<Element, kDimQk, kDimV, kSoftcap, SharedMemoryTier::kSmall>;
      if (variant.tier == SharedMemoryTier::kSmall) {
        return launch_forward_instance<Small>(params, num_multiprocessors, stream);
      }
    }
    launch_forward_instance<Large>(params, num_multiprocessors, stream);
  });
}

template <int kDimQk, int kDimV>
void launch_backward_class(const Variant& variant, const backward::Params& params,
                           const backward::PrePostParams& pre_post, int num_multiprocessors, cudaStream_t stream) {
  with_instance(variant, [&]<typename Element, bool kSoftcap> {
    using Large = backward::Traits<Element, kDimQk, kDimV, kSoftcap>;
    if constexpr (kAllKernels && has_small_backward(kDimQk, kDimV)) {
      using Small = backward::Traits<Element, kDimQk, kDimV, kSoftcap, SharedMemoryTier::kSmall>;
      if (variant.tier == SharedMemoryTier::kSmall) {
        return launch_backward_instance<Small>(params, pre_post, num_multiprocessors, stream);
      }
    }
    launch_backward_instance<Large>(params, pre_post, num_multiprocessors, stream);
  });
}

}  // namespace tangram::sm80
