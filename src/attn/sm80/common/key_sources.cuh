// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Keys that other ranks send while a kernel runs, and keys that lie in other tensors than k and v.
#pragma once

#include <cstdint>

#include "attn/gpu/ready_flags.hpp"
#include "cuda/wait.cuh"
#include "schedule/local_kv_table.hpp"

namespace tangram::sm80 {

/// Bits of the flags that have been seen set, in shared memory. All are set when the group has failed: the kernel then
/// ends on whatever is in memory.
struct ArrivedKeys {
  uint64_t bits;
};

/// Waits until keys [begin, end) are there and copies of all threads see them. All threads of the CTA, with the same
/// keys; `arrived` is zero at first. One thread polls, and only for flags that are needed.
__device__ __forceinline__ void await_keys(const gpu::ReadyFlagParams& params, ArrivedKeys& arrived, int32_t begin,
                                           int32_t end) {
  uint64_t needed = 0;
#pragma unroll 1
  for (int32_t granule = begin / gpu::kReadyGranule; granule * gpu::kReadyGranule < end; ++granule) {
    needed |= __ldg(params.needed + granule);
  }
  uint64_t missing = needed & ~arrived.bits;  // the same for all threads, since it changes between two barriers alone
  if (missing == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto& context = *static_cast<const cuda::WaitContext*>(params.ready_flags.context);
    const uint64_t epoch = *params.ready_flags.epoch;
#pragma unroll 1
    for (int bit = 0; missing != 0; ++bit, missing >>= 1) {
      if ((missing & 1) == 0) continue;
      const int32_t flag = __ldg(params.flag_of_bit + bit);
      const cuda::WaitFailure failure{cuda::WaitKind::kReadyFlag,     context.rank,
                                      flag % params.ready_flags.size, flag / params.ready_flags.size,
                                      params.ready_flags.pass,        0};
      if (!cuda::wait_for_flag<true>(context, params.ready_flags.flags + flag, epoch, failure)) {
        needed = params.pending;
        break;
      }
    }
    arrived.bits |= needed;
  }
  __syncthreads();
}

/// Row of the other tensors at which keys [begin, end) begin, or a negative number: they are rows of k and v.
__device__ __forceinline__ int32_t local_kv_row(const LocalKvParams& params, int32_t begin, int32_t end) {
  if (params.of_granule == nullptr) return -1;
  const int4 range = __ldg(reinterpret_cast<const int4*>(params.of_granule) + begin / kLocalKvGranule);
  return range.x <= begin && end <= range.y ? begin + range.z : -1;
}

}  // namespace tangram::sm80
