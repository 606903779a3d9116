// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/streams.hpp"

#include "cuda/check.hpp"

namespace tangram::comm {

OwnedStream::OwnedStream() {
  int lowest = 0, highest = 0;
  cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority");
}
OwnedStream::~OwnedStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

OwnedEvent::OwnedEvent() {
  cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}
OwnedEvent::~OwnedEvent() { static_cast<void>(cudaEventDestroy(event_)); }

void OwnedEvent::order(cudaStream_t from, cudaStream_t to) const {
  cuda::check(cudaEventRecord(event_, from), "cudaEventRecord");
  cuda::check(cudaStreamWaitEvent(to, event_, 0), "cudaStreamWaitEvent");
}

}  // namespace tangram::comm
