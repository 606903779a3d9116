// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of the forward kernels of one dtype.
#pragma once

#include <algorithm>

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/tokens/kernel.cuh"
#include "attn/sm90/tokens/launch.hpp"

namespace tangram::sm90::tokens {

template <typename Traits>
void launch_traits(const Params& params, int num_sms, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(Smem<Traits>);
  static_assert(Traits::kCtas * (kSmemBytes + 1024) <= 228 * 1024);
  allow_shared_memory<token_kernel<Traits>, kSmemBytes>("cudaFuncSetAttribute(sm90 token indices)");
  launch_kernel(token_kernel<Traits>, params, std::min(num_sms * Traits::kCtas, params.num_work_tiles),
                Traits::kThreads, kSmemBytes, false, stream, "sm90 token indices launch");
}

template <typename Element>
void launch_element(const Params& params, int num_sms, cudaStream_t stream) {
  const int heads = (params.heads_per_kv + params.parts - 1) / params.parts;
  (heads <= kRowsOfWarpgroup ? launch_traits<Traits<Element, 1>> : launch_traits<Traits<Element, 2>>)(params, num_sms,
                                                                                                      stream);
}

}  // namespace tangram::sm90::tokens
