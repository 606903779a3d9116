// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/upload_ring.hpp"

#include <algorithm>
#include <atomic>

#include "core/rounding.hpp"
#include "cuda/check.hpp"
#include "cuda/event.hpp"
#include "cuda/graph_lifetime.hpp"
#include "tangram/error.hpp"

namespace tangram::cuda {

namespace {

constexpr size_t kAlignment = 256;
/// Copies of so many bytes begin while the host makes the next list.
constexpr size_t kWorthACall = size_t{1} << 20;

/// Copies in no order among each other. False: the driver is too old.
bool try_copy_together(std::vector<void*>& targets, std::vector<const void*>& sources, std::vector<size_t>& sizes,
                       cudaStream_t stream) {
  static std::atomic<bool> can = true;
  if (!can) return false;
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  const cudaError_t status = cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), targets.size(),
                                                  &attributes, &first, 1, stream);
  if (status == cudaErrorNotSupported || status == cudaErrorCallRequiresNewerDriver) {
    static_cast<void>(cudaGetLastError());  // it would be taken for another call's
    can = false;
    return false;
  }
  check(status, "cudaMemcpyBatchAsync");
  return true;
}

}  // namespace

UploadRing::UploadRing(size_t bytes, cudaStream_t stream) : part_bytes_(round_up(bytes, kAlignment)), stream_(stream) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, part_bytes_ * kParts, cudaHostAllocDefault), "cudaHostAlloc");
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
  try {
    wait();
  } catch (const CudaError&) {  // so will who reads what should have been copied
  }
  for (const Part& part : parts_) static_cast<void>(cudaEventDestroy(part.copied));
  static_cast<void>(cudaEventDestroy(latest_));
  static_cast<void>(cudaFreeHost(memory_));
}

std::byte* UploadRing::next(size_t bytes) {
  // Where somebody has waited for all copies, those of the mask before, they are likely to have run: then the bytes
  // that were written last, which are in the processor's caches, are used again.
  if (!any_since_ && current_ * part_bytes_ + used_ > 0) {
    if (has_happened(latest_)) {
      current_ = used_ = 0;
      for (Part& part : parts_) part.in_flight = false;
    }
  }
  if (used_ + bytes > part_bytes_) {
    Part& full = parts_[current_];
    flush();
    check(cudaEventRecord(full.copied, stream_), "cudaEventRecord");
    full.in_flight = true;
    current_ = (current_ + 1) % kParts;
    used_ = 0;
    Part& part = parts_[current_];
    if (part.in_flight && !has_happened(part.copied)) check(cudaEventSynchronize(part.copied), "cudaEventSynchronize");
    part.in_flight = false;
  }
  return memory_ + current_ * part_bytes_ + used_;
}

void UploadRing::copy_to(void* device, size_t bytes) {
  targets_.push_back(device);
  sources_.push_back(memory_ + current_ * part_bytes_ + used_);
  sizes_.push_back(bytes);
  used_ += round_up(bytes, kAlignment);
  any_since_ = true;
  waiting_bytes_ += bytes;
  if (waiting_bytes_ >= kWorthACall) flush();
}

void UploadRing::forget(const void* device) noexcept {
  const auto found = std::ranges::find(targets_.begin(), targets_.end(), device);
  if (found == targets_.end()) return;
  const auto at = found - targets_.begin();
  waiting_bytes_ -= sizes_[static_cast<size_t>(at)];
  targets_.erase(found);
  sources_.erase(sources_.begin() + at);
  sizes_.erase(sizes_.begin() + at);
}

void UploadRing::flush() {
  if (targets_.size() < 2 || !try_copy_together(targets_, sources_, sizes_, stream_)) {
    for (size_t i = 0; i < targets_.size(); ++i) {
      check(cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    }
  }
  targets_.clear();
  sources_.clear();
  sizes_.clear();
  waiting_bytes_ = 0;
}

void UploadRing::mark() {
  if (!any_since_) return;
  flush();
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
