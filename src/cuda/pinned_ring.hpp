// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Host memory from which copies to a device run behind the host, block after block.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace tangram::cuda {

/// A few blocks of page-locked memory in turn: one is filled while copies of others have not run yet. Allocates on
/// construction alone. Used by one thread at a time.
class PinnedRing {
 public:
  static constexpr int kBlocks = 4;

  /// Blocks of `bytes`, aligned to 256. Throws CudaError.
  explicit PinnedRing(size_t bytes);
  /// Waits for copies that have not run.
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  /// The next block, to be filled. Waits on the host only where the copy out of it, kBlocks copies ago, has not run
  /// yet. Throws CudaError.
  std::byte* next();

  /// Enqueues the copy of the first `bytes` of that block, once. Throws CudaError.
  void copy_to(void* device, size_t bytes, cudaStream_t stream);

  /// Makes `stream`, or the host, wait for the last copy and thus for all that were put on the same stream before.
  /// Throws CudaError.
  void make_wait(cudaStream_t stream) const;
  void wait() const;

 private:
  size_t block_bytes_;
  std::byte* memory_ = nullptr;
  std::array<cudaEvent_t, kBlocks> copied_{};  // behind the last copy out of a block
  std::array<bool, kBlocks> in_flight_{};
  int current_ = kBlocks - 1;
};

}  // namespace tangram::cuda
