// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one instance of the forward kernel, with programmatic dependent launch.
#pragma once

#include <type_traits>

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/forward/kernel.cuh"
#include "attn/sm90/forward/launch.hpp"

namespace tangram::sm90 {

template <typename Traits>
void launch_instance(const typename Traits::Params& params, int num_ctas, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(ForwardSmem<Traits>);
  allow_shared_memory<forward_kernel<Traits>, kSmemBytes>("cudaFuncSetAttribute(sm90 forward)");
  launch_kernel(forward_kernel<Traits>, params, num_ctas, Traits::kThreads, kSmemBytes, true, stream,
                "sm90 forward kernel launch");
}

template <typename Element, int kHeadDim, bool kSplitKv>
void launch_head_dim(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr int kKeys = forward_tile_keys(kHeadDim, kHeadDim, false);
  constexpr int kKeysSoftcap = forward_tile_keys(kHeadDim, kHeadDim, true);
  if constexpr (!kSplitKv && fetches_runs(kHeadDim, kHeadDim)) {
    if (variant.many_runs && !variant.softcap) {
      using Traits = FetchingTraits<ForwardTraits<Element, kHeadDim, kKeys, false, false>>;
      return launch_instance<Traits>(params, num_ctas, stream);
    }
  }
  if (variant.softcap) {
    launch_instance<ForwardTraits<Element, kHeadDim, kKeysSoftcap, true, kSplitKv>>(params, num_ctas, stream);
  } else {
    launch_instance<ForwardTraits<Element, kHeadDim, kKeys, false, kSplitKv>>(params, num_ctas, stream);
  }
}

template <typename Element, bool kSplitKv>
void launch_element(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  with_exact_class(variant.head_dim, variant.head_dim_v, [&]<int kHeadDim> {
    launch_head_dim<Element, kHeadDim, kSplitKv>(variant, params, num_ctas, stream);
  });
}

template <typename Element, int kHeadDim, bool kSoftcap>
void launch_any_pack(bool parts, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr int kKeys = forward_tile_keys(kHeadDim, kHeadDim, kSoftcap);
  const auto run = parts ? launch_instance<AnyPackTraits<ForwardTraits<Element, kHeadDim, kKeys, kSoftcap, true>>>
                         : launch_instance<AnyPackTraits<ForwardTraits<Element, kHeadDim, kKeys, kSoftcap, false>>>;
  run(params, num_ctas, stream);
}

template <typename Element>
void launch_any_pack_element(const ForwardVariant& variant, const ForwardParams& params, int num_ctas,
                             cudaStream_t stream) {
  with_exact_class(variant.head_dim, variant.head_dim_v, [&]<int kHeadDim> {
    if constexpr (packs_any_heads(kHeadDim, kHeadDim)) {
      const auto run =
          variant.softcap ? launch_any_pack<Element, kHeadDim, true> : launch_any_pack<Element, kHeadDim, false>;
      run(variant.parts, params, num_ctas, stream);
    }
  });
}

template <template <typename, int, int, bool> typename Traits, typename Element, int kDimQk, int kDimV>
void launch_any_dim_element(bool softcap, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  const auto run = softcap ? launch_instance<Traits<Element, kDimQk, kDimV, kAllKernels>>
                           : launch_instance<Traits<Element, kDimQk, kDimV, false>>;
  run(params, num_ctas, stream);
}

template <template <typename, int, int, bool> typename Traits, int kDimQk, int kDimV>
void launch_any_dim_traits(const ForwardVariant& variant, const ForwardParams& params, int num_ctas,
                           cudaStream_t stream) {
  using Half = std::conditional_t<kAllKernels, __half, __nv_bfloat16>;
  (variant.half
       ? launch_any_dim_element<Traits, Half, kDimQk, kDimV>
       : launch_any_dim_element<Traits, __nv_bfloat16, kDimQk, kDimV>)(variant.softcap, params, num_ctas, stream);
}

template <int kDimQk, int kDimV>
void launch_any_dim(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  require_in_sample(variant.half, variant.softcap);
  if constexpr (shape_class(kDimQk, kDimV).forward_many.warpgroups > 0) {
    if (variant.many) {
      return launch_any_dim_traits<ManyForwardTraits, kDimQk, kDimV>(variant, params, num_ctas, stream);
    }
  }
  launch_any_dim_traits<AnyDimForwardTraits, kDimQk, kDimV>(variant, params, num_ctas, stream);
}

template <typename Element>
void launch_gathered_element(const ForwardVariant& variant, const GatheredParams& params, int num_ctas,
                             cudaStream_t stream) {
  with_exact_class(variant.head_dim, variant.head_dim_v, [&]<int kHeadDim> {
    if constexpr (aligns_work_tiles(kHeadDim, kHeadDim)) {
      if (variant.aligned) {
        const auto run = variant.softcap ? launch_instance<AlignedTraitsOf<Element, kHeadDim, true>>
                                         : launch_instance<AlignedTraitsOf<Element, kHeadDim, false>>;
        return run(params, num_ctas, stream);
      }
    }
    if constexpr (gathers_runs(kHeadDim, kHeadDim)) {
      const auto run = variant.softcap ? launch_instance<GatheredTraitsOf<Element, kHeadDim, true>>
                                       : launch_instance<GatheredTraitsOf<Element, kHeadDim, false>>;
      run(params, num_ctas, stream);
    }
  });
}

}  // namespace tangram::sm90
