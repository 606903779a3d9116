// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/counting_runtime.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace tangram::testing {

namespace {

RuntimeCounts counts;
std::map<void*, size_t> blocks;
std::mutex mutex;
std::vector<size_t> parameter_bytes;  // of launches to be recorded
std::vector<Launch> launches;
bool is_captured = false;
bool events_are_ready = true;
uint64_t stream_generation = 0;

}  // namespace

void record_launches(std::vector<size_t> bytes) {
  launches.clear();
  parameter_bytes = std::move(bytes);
}
std::vector<Launch> recorded_launches() { return launches; }
void set_captured(bool captured) { is_captured = captured; }
void set_events_ready(bool ready) { events_are_ready = ready; }
void set_stream_generation(uint64_t generation) { stream_generation = generation; }

RuntimeCounts runtime_counts() {
  const std::lock_guard lock(mutex);
  return counts;
}

}  // namespace tangram::testing

namespace {

using tangram::testing::blocks;
using tangram::testing::counts;
using tangram::testing::events_are_ready;
using tangram::testing::is_captured;
using tangram::testing::launches;
using tangram::testing::mutex;
using tangram::testing::parameter_bytes;
using tangram::testing::stream_generation;

cudaError_t count(int64_t& what) {
  const std::lock_guard lock(mutex);
  ++what;
  return cudaSuccess;
}

/// A handle that nobody looks into.
template <class Handle>
cudaError_t make_handle(Handle* handle) {
  *handle = reinterpret_cast<Handle>(uintptr_t{16});
  return cudaSuccess;
}

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

/// With the mutex held.
void spoil_captures() {
  if (is_captured && capture_mode != cudaStreamCaptureModeRelaxed) ++counts.spoiled_captures;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  const std::lock_guard lock(mutex);
  blocks[*data] = bytes;
  spoil_captures();
  counts.live_bytes += static_cast<int64_t>(bytes);
  ++counts.allocations;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  const std::lock_guard lock(mutex);
  spoil_captures();
  counts.live_bytes -= static_cast<int64_t>(blocks.at(data));
  blocks.erase(data);
  ++counts.frees;
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  return count(counts.host_allocations);
}
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return count(counts.copies);
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return count(counts.waits); }
cudaError_t cudaDeviceSynchronize() { return count(counts.waits); }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* devices) {
  *devices = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "counting");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return count(counts.device_queries);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = which == cudaDevAttrMultiProcessorCount ? 132 : which == cudaDevAttrL2CacheSize ? 50 << 20 : 9;
  return count(counts.device_queries);
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the counting runtime"; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return make_handle(stream); }
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = reinterpret_cast<uintptr_t>(stream) + (stream_generation << 32);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make_handle(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return count(counts.stream_waits); }
cudaError_t cudaEventQuery(cudaEvent_t) { return events_are_ready ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return count(counts.waits); }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = is_captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = is_captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  return make_handle(object);
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** parameters) {
  if (launches.size() < parameter_bytes.size()) {
    const char* const parameter = static_cast<const char*>(parameters[0]);
    launches.push_back({kernel, config->gridDim.x, {parameter, parameter + parameter_bytes[launches.size()]}});
  }
  return count(counts.launches);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  // cuTensorMapEncodeTiled, the one function of the driver that backends ask for.
  // Its other arguments stay where callers put them. A map of the counting runtime holds the address alone.
  *function = reinterpret_cast<void*>(+[](char* map, int, unsigned, void* address) -> int {
    std::memset(map, 0, 128);
    std::memcpy(map, &address, sizeof(address));
    return 0;
  });
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// What compiled kernels call to make themselves known.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
cudaError_t __cudaGetKernel(void**, const void*) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, cudaStream_t) { return count(counts.launches); }

}  // extern "C"
