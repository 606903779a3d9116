// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/upload_ring.hpp"

#include "core/rounding.hpp"
#include "cuda/check.hpp"
#include "cuda/event.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::cuda {

namespace {

constexpr size_t kAlignment = 256;

}  // namespace

UploadRing::UploadRing(size_t bytes, cudaStream_t stream) : part_bytes_(round_up(bytes, kAlignment)), stream_(stream) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, part_bytes_ * kSplitKv, cudaHostAllocDefault), "cudaHostAlloc");
  memory_ = static_cast<std::byte*>(memory);
  cudaError_t error = cudaEventCreateWithFlags(&latest_, cudaEventDisableTiming);
  for (Part& part : parts_) {
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&part.copied, cudaEventDisableTiming);
  }
  if (error == cudaSuccess) return;
  static_cast<void>(cudaFreeHost(memory_));
  check(error, "cudaEventCreateWithFlags");
}

UploadRing::~UploadRing() {
  const AllowAllocationDuringCapture allow;  // to free, and to wait for an event
  if (any_since_) static_cast<void>(cudaEventRecord(latest_, stream_));
  static_cast<void>(cudaEventSynchronize(latest_));
  for (const Part& part : parts_) static_cast<void>(cudaEventDestroy(part.copied));
  static_cast<void>(cudaEventDestroy(latest_));
  static_cast<void>(cudaFreeHost(memory_));
}

std::byte* UploadRing::next(size_t bytes) {
  // After a wait for all copies, those of the mask before have probably run. Then the bytes written last, which are in
  // the processor's caches, are reused.
  if (!any_since_ && current_ * part_bytes_ + used_ > 0) {
    if (has_happened(latest_)) {
      current_ = used_ = 0;
      for (Part& part : parts_) part.in_flight = false;
    }
  }
  if (used_ + bytes > part_bytes_) {
    Part& full = parts_[current_];
    check(cudaEventRecord(full.copied, stream_), "cudaEventRecord");
    full.in_flight = true;
    current_ = (current_ + 1) % kSplitKv;
    used_ = 0;
    Part& part = parts_[current_];
    if (part.in_flight && !has_happened(part.copied)) check(cudaEventSynchronize(part.copied), "cudaEventSynchronize");
    part.in_flight = false;
  }
  return memory_ + current_ * part_bytes_ + used_;
}

void UploadRing::copy_to(void* device, size_t bytes) {
  check(cudaMemcpyAsync(device, memory_ + current_ * part_bytes_ + used_, bytes, cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
  used_ += round_up(bytes, kAlignment);
  any_since_ = true;
}

void UploadRing::mark() {
  if (!any_since_) return;
  check(cudaEventRecord(latest_, stream_), "cudaEventRecord");
  any_since_ = false;
}

void UploadRing::make_wait(cudaStream_t stream) {
  mark();
  check(cudaStreamWaitEvent(stream, latest_, 0), "cudaStreamWaitEvent");
}

void UploadRing::wait() {
  mark();
  check(cudaEventSynchronize(latest_), "cudaEventSynchronize");
}

}  // namespace tangram::cuda
