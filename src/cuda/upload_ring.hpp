// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Host memory from which copies of many sizes to a device run behind the host.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace tangram::cuda {

/// Page-locked memory that is filled from begin to end and then anew. Consecutive copies share the events that mark
/// their bytes, or the copies themselves, as done. Beside the copy itself, most make no CUDA call. Allocates on
/// construction alone. Used by one thread at a time, which may allocate (AllowAllocationDuringCapture).
class UploadRing {
 public:
  /// Copies of at most `bytes`, on `stream`. Throws CudaError.
  UploadRing(size_t bytes, cudaStream_t stream);
  /// Waits for copies that have not run.
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  /// Where to write the `bytes` of the next copy. Waits on the host only where copies out of this part of the ring, a
  /// whole ring ago, have not run yet. Throws CudaError.
  std::byte* next(size_t bytes);
  /// Enqueues that copy. Throws CudaError.
  void copy_to(void* device, size_t bytes);

  /// Makes `stream`, or the host, wait for all copies so far. Throws CudaError.
  void make_wait(cudaStream_t stream);
  void wait();

 private:
  static constexpr size_t kSplitKv = 4;

  struct Part {
    cudaEvent_t copied = nullptr;  // behind the last copy out of it
    bool in_flight = false;
  };

  void mark();

  const size_t part_bytes_;
  const cudaStream_t stream_;
  std::byte* memory_ = nullptr;
  std::array<Part, kSplitKv> parts_;
  size_t current_ = 0;            // part
  size_t used_ = 0;               // bytes of it
  cudaEvent_t latest_ = nullptr;  // behind all copies but for those since mark()
  bool any_since_ = false;
};

}  // namespace tangram::cuda
