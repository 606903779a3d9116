// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/streams.hpp"

#include <cudaTypedefs.h>

#include "core/require.hpp"
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

namespace {

PFN_cuStreamWriteValue64_v11070 write_value() {
  static const PFN_cuStreamWriteValue64_v11070 found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status{};
    cuda::check(cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &function, 12000, cudaEnableDefault, &status),
                "cudaGetDriverEntryPointByVersion(cuStreamWriteValue64)");
    TANGRAM_ASSERT(status == cudaDriverEntryPointSuccess);
    return reinterpret_cast<PFN_cuStreamWriteValue64_v11070>(function);
  }();
  return found;
}

}  // namespace

StreamWord::StreamWord() : word_(cuda::DeviceBuffer::zeros(sizeof(uint64_t))) {}

uint64_t StreamWord::raise(cudaStream_t stream) {
  const auto address = reinterpret_cast<CUdeviceptr>(word_.as<void>());
  const CUresult result = write_value()(stream, address, ++value_, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) throw CudaError("cuStreamWriteValue64 failed: " + std::to_string(result));
  return value_;
}

}  // namespace tangram::comm
