// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "device.hpp"

#ifdef TANGRAM_HAVE_CUDA

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::python {

bool is_captured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  static_cast<void>(cudaGetLastError());  // the legacy stream may not be asked while another one is captured
  return error != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

void copy_on_device(void* to, const void* from, int64_t num_bytes, void* stream) {
  cuda::check(cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToDevice,
                              static_cast<cudaStream_t>(stream)),
              "cudaMemcpyAsync");
}

void synchronize_device() { cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

void finish_device() noexcept {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const bool exchanged = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
  static_cast<void>(cudaDeviceSynchronize());
  static_cast<void>(cudaGetLastError());
  if (exchanged) static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
}

void keep_while_graph_lives(void* stream, std::shared_ptr<const void> object) {
  cuda::keep_while_graph_lives(static_cast<cudaStream_t>(stream), std::move(object));
}

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
void copy_on_device(void*, const void*, int64_t, void*) {}
bool is_captured(void*) { return false; }
void synchronize_device() {}
void finish_device() noexcept {}
void StreamOrder::enter(void*) {}
void keep_while_graph_lives(void*, std::shared_ptr<const void>) {}

}  // namespace tangram::python

#endif
