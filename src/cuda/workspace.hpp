// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Workspace: device memory that calls use while they run, one after the other.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <optional>

#include "cuda/device_buffer.hpp"

namespace tangram::cuda {

/// One block of memory of one device, as large as the largest call has wanted so far. It belongs to calls, not to masks
/// or layers: a call finds in it what an earlier one has left. Calls on several streams are ordered by an event.
///
/// Calls that are captured use the block, too, and the graph keeps it alive. Its launches are not ordered against other
/// calls, though: a caller that launches it beside these must give one of them other memory.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// The right to put a call that uses the block on a stream. Other calls wait on the host until it ends.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept = default;
    /// Ends the lease: work put on the stream from now on does not use the block.
    ~Lease();
    void* data() const { return data_; }

   private:
    friend class Workspace;
    Workspace* owner_ = nullptr;
    cudaStream_t stream_ = nullptr;
    bool captured_ = false;
    void* data_ = nullptr;
    std::unique_lock<std::mutex> lock_;
  };
  /// At least `bytes` for what is now put on `stream`, aligned to kScratchAlignment; null for no bytes. Allocates where
  /// the block is too small; the current device must be the same each time. Throws CudaError.
  Lease acquire(size_t bytes, cudaStream_t stream);

  size_t bytes() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<DeviceBuffer> block_;
  cudaEvent_t used_ = nullptr;               // behind the last call that was not captured
  std::optional<cudaStream_t> last_stream_;  // that call's
};

/// Workspace for calls without memory of their own and without a communicator whose workspace they use. Throws
/// CudaError.
Workspace& workspace_of_current_device();

}  // namespace tangram::cuda
