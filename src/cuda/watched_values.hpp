// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Values in GPU memory that the host has read once and does not read again. If they have changed, results become NaN
// and the host is told. The host waits for nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace tangram::cuda {

struct WatchedValues {
  const void* now = nullptr;    ///< device memory, contiguous
  const void* known = nullptr;  ///< device memory: a copy of what the host has read
  int64_t num_bytes = 0;
};

/// Contiguous device memory of a floating type.
struct WatchedResult {
  void* data = nullptr;
  int64_t num_bytes = 0;
};

inline constexpr int kMostWatched = 3;  ///< of each, in one comparison

/// Enqueues a comparison on `stream`. If any value differs from its copy, every byte of the results becomes 0xff, which
/// is NaN in float32, bfloat16 and float16. take_changed() returns true once the host sees it. A CUDA graph may hold
/// the comparison: its owner must keep values, copies and results. Throws CudaError.
void poison_if_changed(std::span<const WatchedValues> values, std::span<const WatchedResult> results,
                       cudaStream_t stream);

/// Whether a comparison on any GPU of this process has found other values since the last call, as far as the host
/// knows. Needs no GPU.
bool take_changed();

}  // namespace tangram::cuda
