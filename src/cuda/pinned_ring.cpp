// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/pinned_ring.hpp"

#include "core/rounding.hpp"
#include "cuda/check.hpp"
#include "cuda/event.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::cuda {

PinnedRing::PinnedRing(size_t bytes) : block_bytes_(round_up(bytes, 256)) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, block_bytes_ * kBlocks, cudaHostAllocDefault), "cudaHostAlloc");
  memory_ = static_cast<std::byte*>(memory);
  for (cudaEvent_t& event : copied_) {
    const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess) continue;
    static_cast<void>(cudaFreeHost(memory_));
    check(error, "cudaEventCreateWithFlags");
  }
}

PinnedRing::~PinnedRing() {
  const AllowAllocationDuringCapture allow;  // to free, and to wait for an event
  for (size_t i = 0; i < copied_.size(); ++i) {
    if (in_flight_[i]) static_cast<void>(cudaEventSynchronize(copied_[i]));
    static_cast<void>(cudaEventDestroy(copied_[i]));
  }
  static_cast<void>(cudaFreeHost(memory_));
}

std::byte* PinnedRing::next() {
  current_ = (current_ + 1) % kBlocks;
  const auto at = static_cast<size_t>(current_);
  if (in_flight_[at]) {
    const AllowAllocationDuringCapture allow;
    if (!has_happened(copied_[at])) check(cudaEventSynchronize(copied_[at]), "cudaEventSynchronize");
    in_flight_[at] = false;
  }
  return memory_ + at * block_bytes_;
}

void PinnedRing::copy_to(void* device, size_t bytes, cudaStream_t stream) {
  const auto at = static_cast<size_t>(current_);
  const AllowAllocationDuringCapture allow;
  check(cudaMemcpyAsync(device, memory_ + at * block_bytes_, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  check(cudaEventRecord(copied_[at], stream), "cudaEventRecord");
  in_flight_[at] = true;
}

void PinnedRing::make_wait(cudaStream_t stream) const {
  check(cudaStreamWaitEvent(stream, copied_[static_cast<size_t>(current_)], 0), "cudaStreamWaitEvent");
}

void PinnedRing::wait() const {
  const AllowAllocationDuringCapture allow;
  check(cudaEventSynchronize(copied_[static_cast<size_t>(current_)]), "cudaEventSynchronize");
}

}  // namespace tangram::cuda
