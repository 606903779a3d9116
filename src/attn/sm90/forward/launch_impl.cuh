// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one instance of the forward kernel, with programmatic dependent launch.
#pragma once

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

template <typename Element, int kHeadDim, bool kSoftcap, bool kParts>
using ForwardTraitsOf = ForwardTraits<Element, kHeadDim, forward_tile_keys(kHeadDim, kSoftcap), kSoftcap, kParts>;

template <typename Element, bool kParts>
void launch_element(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  with_head_dim(variant.head_dim, [&]<int kHeadDim> {
    const auto launch = variant.softcap ? launch_instance<ForwardTraitsOf<Element, kHeadDim, true, kParts>>
                                        : launch_instance<ForwardTraitsOf<Element, kHeadDim, false, kParts>>;
    launch(params, num_ctas, stream);
  });
}

template <typename Element>
void launch_gathered_element(const ForwardVariant& variant, const GatheredParams& params, int num_ctas,
                             cudaStream_t stream) {
  const auto launch = variant.softcap
                          ? launch_instance<GatheredTraits<ForwardTraitsOf<Element, kGatheredHeadDim, true, false>>>
                          : launch_instance<GatheredTraits<ForwardTraitsOf<Element, kGatheredHeadDim, false, false>>>;
  launch(params, num_ctas, stream);
}

}  // namespace tangram::sm90
