// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How kernels wait for other ranks: with a deadline, and without ever hanging or trapping.
#pragma once

#include <cstdint>

#include "cuda/ptx/system.cuh"
#include "cuda/wait_context.hpp"

namespace tangram::cuda {

/// Makes the failure known to the kernels and hosts of all ranks, unless an earlier one is.
__device__ inline void report_failure(const WaitContext& context, const WaitFailure& failure) {
  const uint64_t word = pack(failure);
  const auto earlier = atomicCAS_system(reinterpret_cast<unsigned long long*>(context.abort), 0ULL,
                                        static_cast<unsigned long long>(word));
  if (earlier != 0) return;
  for (int rank = 0; rank < context.size; ++rank) {
    // Hosts first: a kernel that ends because of the abort word must find its host informed.
    ptx::store_release_system(&context.control_block[rank].report, word);
    if (rank != context.rank) ptx::store_release_system(context.aborts[rank], word);
  }
}

/// Whether the group has failed.
__device__ inline bool has_failed(const WaitContext& context) { return ptx::load_relaxed_system(context.abort) != 0; }

/// Waits until the flag has reached `value` (cyclic order). Data written before the flag is then visible to this
/// thread, and to bulk copies that it issues after ptx::fence_proxy_async_global(). False when the group has failed, or
/// fails here because the deadline passes, which is reported as `failure`. From half of its time on it tells the host
/// what it waits for, unless kTells is false: that takes registers. One thread.
template <bool kTells = true>
__device__ inline bool wait_for_flag(const WaitContext& context, const uint64_t* flag, uint64_t value,
                                     const WaitFailure& failure) {
  // NOTE [gentle polls]: a whole device may wait here, a thread of every block, while copy engines bring what it waits
  // for. Polling at full speed, reading the host's memory often above all, held them up tenfold.
  constexpr uint32_t kPollsBetweenChecks = 64, kChecksBetweenLooksAtHost = 16;
  constexpr uint32_t kPause_ns = 200;
  if (static_cast<int64_t>(ptx::load_acquire_system(flag) - value) >= 0) return true;
  const uint64_t begin = ptx::global_timer_ns();
  for (uint32_t polls = 1;; ++polls) {
    if (static_cast<int64_t>(ptx::load_relaxed_system(flag) - value) >= 0) {
      static_cast<void>(ptx::load_acquire_system(flag));
      return true;
    }
    __nanosleep(kPause_ns);
    if (polls % kPollsBetweenChecks != 0) continue;
    if (has_failed(context)) return false;
    const uint64_t waited_ns = ptx::global_timer_ns() - begin;
    if (waited_ns > context.timeout_ns) {
      report_failure(context, failure);
      return false;
    }
    if (polls % (kPollsBetweenChecks * kChecksBetweenLooksAtHost) != 0) continue;
    if (kTells && waited_ns > context.timeout_ns / 2) {
      ptx::store_release_system(&context.control_block[context.rank].waiting, pack(failure));
    }
    const uint64_t given_up = ptx::load_relaxed_system(&context.control_block[context.rank].host_abort);
    if (given_up != 0) {
      const WaitFailure noticed = unpack(given_up);
      WaitFailure ended = failure;
      ended.peer = noticed.peer;
      ended.detail = static_cast<int>(noticed.kind);
      report_failure(context, ended);
      return false;
    }
  }
}

}  // namespace tangram::cuda
