// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one instance of the forward kernel, with programmatic dependent launch.
#pragma once

#include "attn/sm90/forward/kernel.cuh"
#include "attn/sm90/forward/launch.hpp"
#include "cuda/check.hpp"
#include "cuda/once_per_device.hpp"

namespace tangram::sm90 {

template <typename Traits>
void launch_instance(const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(ForwardSmem<Traits>);
  static_assert(kSmemBytes <= 227 * 1024);
  const auto kernel = forward_kernel<Traits>;
  // The attribute belongs to the function as loaded on one device: threads of a process may use several.
  static cuda::OncePerDevice has_memory;
  has_memory.call([&] {
    cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes),
                "cudaFuncSetAttribute(sm90 forward)");
  });
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(Traits::kThreads);
  config.dynamicSmemBytes = kSmemBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda::check(cudaLaunchKernelEx(&config, kernel, params), "sm90 forward kernel launch");
}

template <typename Element, int kHeadDim, bool kParts>
void launch_head_dim(bool softcap, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  if (softcap) {
    launch_instance<ForwardTraits<Element, kHeadDim, forward_tile_keys(kHeadDim, true), true, kParts>>(params, num_ctas,
                                                                                                       stream);
  } else {
    launch_instance<ForwardTraits<Element, kHeadDim, forward_tile_keys(kHeadDim, false), false, kParts>>(
        params, num_ctas, stream);
  }
}

template <typename Element, bool kParts>
void launch_element(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  if (variant.head_dim == 128) {
    launch_head_dim<Element, 128, kParts>(variant.softcap, params, num_ctas, stream);
  } else {
    launch_head_dim<Element, 64, kParts>(variant.softcap, params, num_ctas, stream);
  }
}

}  // namespace tangram::sm90
