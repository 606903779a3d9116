// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How a kernel waits for awaited keys. One thread of a CTA polls the flags and informs the thread that issues TMA loads
// through a word in shared memory. So the latter, short of registers, only reads.
#pragma once

#include "attn/gpu/ready_flags.hpp"
#include "cuda/ptx/memory.cuh"
#include "cuda/wait.cuh"

namespace tangram::sm90 {

/// Bits of the flags that have been seen set, in shared memory; zero before. All are set when the group has failed: the
/// kernel then ends on whatever is in memory.
struct ArrivedKeys {
  uint64_t bits;
};

/// Waits for one flag after the other, in the order in which they are expected. One thread. Inlined, since the compiler
/// bounds the registers of a warp that gave some up in the kernel itself alone. kTells: see wait_for_flag.
template <bool kTells>
__device__ __forceinline__ void poll_ready_flags(const gpu::ReadyFlagParams& params, ArrivedKeys& arrived) {
  const auto& context = *static_cast<const cuda::WaitContext*>(params.ready_flags.context);
  const uint64_t epoch = *params.ready_flags.epoch;
  uint64_t seen = 0;
#pragma unroll 1
  for (int bit = 0; seen != params.pending; ++bit) {
    const int32_t flag = __ldg(params.flag_of_bit + bit);
    const cuda::WaitFailure failure{cuda::WaitKind::kReadyFlag,     context.rank,
                                    flag % params.ready_flags.size, flag / params.ready_flags.size,
                                    params.ready_flags.pass,        0};
    seen |= uint64_t{1} << bit;
    if (!cuda::wait_for_flag<kTells>(context, params.ready_flags.flags + flag, epoch, failure)) seen = params.pending;
    ptx::store_release_shared(&arrived.bits, seen);
  }
}

/// Waits until keys [begin, end) are there and TMA loads of this thread see them. Returns whether any may be missing
/// still, so that it must be called again for others.
__device__ __forceinline__ bool await_keys(const gpu::ReadyFlagParams& params, const ArrivedKeys& arrived,
                                           int32_t begin, int32_t end) {
  uint64_t needed = 0;
#pragma unroll 1
  for (int32_t granule = begin / gpu::kReadyGranule; granule * gpu::kReadyGranule < end; ++granule) {
    needed |= __ldg(params.needed + granule);
  }
  uint64_t seen;
  for (;;) {
    seen = ptx::load_acquire_shared(&arrived.bits);
    if ((seen & needed) == needed) break;
    __nanosleep(100);
  }
  ptx::fence_proxy_async_global();
  return seen != params.pending;
}

}  // namespace tangram::sm90
