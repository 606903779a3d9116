// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How kernels wait for other ranks: with a deadline, and without ever hanging or trapping.
#pragma once

#include <cstdint>

#include "cuda/ptx/system.cuh"
#include "cuda/wait_context.hpp"

namespace tangram::cuda {

/// Makes the failure known to all ranks, unless an earlier one is.
__device__ inline void report_failure(const WaitContext& context, const WaitFailure& failure) {
  const uint64_t word = pack(failure);
  const auto earlier = atomicCAS_system(reinterpret_cast<unsigned long long*>(context.abort), 0ULL,
                                        static_cast<unsigned long long>(word));
  ptx::store_release_system(context.report, earlier == 0 ? word : earlier);
  if (earlier != 0) return;
  for (int rank = 0; rank < context.size; ++rank) {
    if (rank != context.rank) ptx::store_release_system(context.aborts[rank], word);
  }
}

/// Whether the group has failed; tells the host if so.
__device__ inline bool has_failed(const WaitContext& context) {
  const uint64_t word = ptx::load_relaxed_system(context.abort);
  if (word != 0) ptx::store_release_system(context.report, word);
  return word != 0;
}

/// Waits until the flag has reached `value` (cyclic order); what was written before the flag is then visible to this
/// thread, and to bulk copies that it issues after ptx::fence_proxy_async_global(). False when the group has failed, or
/// fails here because the deadline passes, which is reported as `failure`. One thread.
__device__ inline bool wait_for_flag(const WaitContext& context, const uint64_t* flag, uint64_t value,
                                     const WaitFailure& failure) {
  constexpr uint32_t kPollsBetweenChecks = 256;
  if (static_cast<int64_t>(ptx::load_acquire_system(flag) - value) >= 0) return true;
  const uint64_t begin = ptx::global_timer_ns();
  for (uint32_t polls = 1;; ++polls) {
    if (static_cast<int64_t>(ptx::load_acquire_system(flag) - value) >= 0) return true;
    if (polls % kPollsBetweenChecks != 0) continue;
    if (has_failed(context)) return false;
    const uint64_t given_up = ptx::load_relaxed_system(context.host_abort);
    if (given_up != 0) {
      report_failure(context, unpack(given_up));
      return false;
    }
    if (ptx::global_timer_ns() - begin > context.timeout_ns) {
      report_failure(context, failure);
      return false;
    }
    __nanosleep(100);
  }
}

}  // namespace tangram::cuda
