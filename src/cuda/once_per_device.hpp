// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What must be done once on every device that a process uses, such as the attributes of a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/check.hpp"

namespace tangram::cuda {

/// Remembers for which devices something was done. Thread-safe; for static storage.
class OncePerDevice {
 public:
  /// Calls `prepare` unless it has returned before while the current device was current. Threads that come first
  /// together may each call it.
  template <class Prepare>
  void call(const Prepare& prepare) {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if ((done_.load(std::memory_order_acquire) & bit) != 0) return;
    prepare();
    done_.fetch_or(bit, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> done_ = 0;
};

}  // namespace tangram::cuda
