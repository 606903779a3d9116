// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "device.hpp"

#ifdef TANGRAM_HAVE_CUDA

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"

namespace tangram::python {

namespace {

bool is_captured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  static_cast<void>(cudaGetLastError());  // the legacy stream may not be asked while another one is captured
  return error != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

}  // namespace

DeviceScope::DeviceScope(int device) {
  if (device < 0) return;
  int current = 0;
  cuda::check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  cuda::check(cudaSetDevice(device), "cudaSetDevice");
  previous_ = current;
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) static_cast<void>(cudaSetDevice(previous_));
}

void StreamOrder::enter(void* stream) {
  const std::optional<void*> last = last_;
  last_ = stream;
  if (!last || *last == stream || is_captured(*last) || is_captured(stream)) return;
  cudaEvent_t event = nullptr;
  cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  cudaError_t status = cudaEventRecord(event, static_cast<cudaStream_t>(*last));
  if (status == cudaSuccess) status = cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0);
  static_cast<void>(cudaEventDestroy(event));  // freed once it has happened
  cuda::check(status, "cudaStreamWaitEvent");
}

}  // namespace tangram::python

#else

namespace tangram::python {

DeviceScope::DeviceScope(int) {}
DeviceScope::~DeviceScope() { static_cast<void>(previous_); }
void StreamOrder::enter(void*) {}

}  // namespace tangram::python

#endif
