// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/workspace.hpp"

#include <map>

#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::cuda {

Workspace::Workspace() = default;

Workspace::~Workspace() {
  if (used_ != nullptr) static_cast<void>(cudaEventDestroy(used_));
}

Workspace::Lease Workspace::acquire(size_t bytes, cudaStream_t stream) {
  Lease lease;
  if (bytes == 0) return lease;
  lease.lock_ = std::unique_lock(mutex_);
  lease.captured_ = is_captured(stream);
  if (used_ == nullptr) {
    check(cudaEventCreateWithFlags(&used_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  if (!lease.captured_ && last_stream_ && *last_stream_ != stream) {
    check(cudaStreamWaitEvent(stream, used_, 0), "cudaStreamWaitEvent");
  }
  if (block_ == nullptr || block_->bytes() < bytes) {
    const AllowAllocationDuringCapture allow;
    block_.reset();  // first, so that there is room for the larger one; waits for calls that use it
    block_ = std::make_shared<DeviceBuffer>(bytes);
  }
  if (lease.captured_) keep_while_graph_lives(stream, block_);
  lease.owner_ = this;
  lease.stream_ = stream;
  lease.data_ = block_->as<void>();
  return lease;
}

Workspace::Lease::~Lease() {
  if (owner_ == nullptr || !lock_.owns_lock() || captured_) return;
  // An error shows in the call that follows: the device is lost.
  static_cast<void>(cudaEventRecord(owner_->used_, stream_));
  owner_->last_stream_ = stream_;
}

size_t Workspace::bytes() const {
  const std::lock_guard lock(mutex_);
  return block_ == nullptr ? 0 : block_->bytes();
}

Workspace& workspace_of_current_device() {
  static std::mutex mutex;
  static auto* const workspaces = new std::map<int, Workspace>;  // CUDA may be gone before static objects
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  return (*workspaces)[device];
}

}  // namespace tangram::cuda
