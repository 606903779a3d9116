// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one set of instances: before, backward and after kernel, chained by programmatic dependent launch.
#pragma once

#include <algorithm>

#include "attn/sm90/backward/edges.cuh"
#include "attn/sm90/backward/kernel.cuh"
#include "attn/sm90/backward/launch.hpp"
#include "cuda/check.hpp"
#include "cuda/load_kernel.hpp"
#include "cuda/once_per_device.hpp"

namespace tangram::sm90::backward {

/// `dependent`: may start before the kernel in front of it has ended; it then waits for it itself.
template <typename KernelParams>
void launch_kernel(void (*kernel)(KernelParams), const KernelParams& params, int64_t num_ctas, int num_threads,
                   size_t smem_bytes, bool dependent, cudaStream_t stream, const char* what) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  cuda::check(cudaLaunchKernelEx(&config, kernel, params), what);
}

template <typename Traits>
void launch_instance(const Params& params, const EdgeParams& edge, int num_ctas, cudaStream_t stream) {
  using Element = typename Traits::Element;
  constexpr int kSmemBytes = sizeof(Smem<Traits>);
  static_assert(kSmemBytes <= 227 * 1024);
  const auto kernel = backward_kernel<Traits>;
  // The attribute belongs to the function as loaded on one device: threads of a process may use several.
  static cuda::OncePerDevice has_memory;
  has_memory.call([&] {
    cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes),
                "cudaFuncSetAttribute(sm90 backward)");
  });
  cuda::load_kernel<after_kernel<Element, Traits::kHeadDim>>();  // the main kernel may wait for late keys
  const int64_t tiles = int64_t{edge.num_q_tiles} * edge.num_heads_q;
  launch_kernel(before_kernel<Element, Traits::kHeadDim>, edge, std::max<int64_t>(tiles, 1), kEdgeThreads, 0, false,
                stream, "sm90 backward: first kernel launch");
  if (num_ctas > 0) {
    launch_kernel(kernel, params, num_ctas, Traits::kThreads, kSmemBytes, true, stream,
                  "sm90 backward: main kernel launch");
  }
  if (tiles > 0) {
    launch_kernel(after_kernel<Element, Traits::kHeadDim>, edge, tiles, kEdgeThreads, 0, true, stream,
                  "sm90 backward: last kernel launch");
  }
}

template <typename Element, int kHeadDim>
void launch_shape(const Variant& variant, const Params& params, const EdgeParams& edge, int num_ctas,
                  cudaStream_t stream) {
  const auto run = variant.softcap ? (variant.deterministic ? launch_instance<Traits<Element, kHeadDim, true, true>>
                                                            : launch_instance<Traits<Element, kHeadDim, true, false>>)
                                   : (variant.deterministic ? launch_instance<Traits<Element, kHeadDim, false, true>>
                                                            : launch_instance<Traits<Element, kHeadDim, false, false>>);
  run(params, edge, num_ctas, stream);
}

template <typename Element>
void launch_element(const Variant& variant, const Params& params, const EdgeParams& edge, int num_ctas,
                    cudaStream_t stream) {
  (variant.head_dim == 128 ? launch_shape<Element, 128> : launch_shape<Element, 64>)(variant, params, edge, num_ctas,
                                                                                     stream);
}

}  // namespace tangram::sm90::backward
