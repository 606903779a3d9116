// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/counting_runtime.hpp"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace tangram::testing {

namespace {

RuntimeCounts counts;
std::map<void*, size_t> blocks;
std::mutex mutex;
std::vector<size_t> parameter_bytes;  // of launches to be recorded
std::vector<Launch> launches;
std::string order;
bool is_captured = false;
int num_devices = 1;
bool events_are_ready = true;
bool moves_large = true;
constexpr size_t kLarge = size_t{1} << 16;
uint64_t stream_generation = 0;
std::function<void(const KernelCall&)> executor;

/// By the host function that stands for a kernel. Kernels are registered before main().
std::map<const void*, std::string>& kernel_names() {
  static std::map<const void*, std::string> names;
  return names;
}

}  // namespace

void set_executor(std::function<void(const KernelCall&)> execute) { executor = std::move(execute); }

void record_launches(std::vector<size_t> bytes) {
  launches.clear();
  order.clear();
  parameter_bytes = std::move(bytes);
}
std::vector<Launch> recorded_launches() { return launches; }
std::string recorded_order() { return order; }
void set_captured(bool captured) { is_captured = captured; }
void set_devices(int devices) { num_devices = devices; }
void set_events_ready(bool ready) { events_are_ready = ready; }
void set_moves_large(bool moves) { moves_large = moves; }
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
using tangram::testing::kLarge;
using tangram::testing::launches;
using tangram::testing::moves_large;
using tangram::testing::mutex;
using tangram::testing::num_devices;
using tangram::testing::order;
using tangram::testing::parameter_bytes;
using tangram::testing::stream_generation;

cudaError_t count(int64_t& what) {
  const std::lock_guard lock(mutex);
  ++what;
  return cudaSuccess;
}

/// An opaque handle.
template <class Handle>
cudaError_t make_handle(Handle* handle) {
  *handle = reinterpret_cast<Handle>(uintptr_t{16});
  return cudaSuccess;
}

using tangram::testing::executor;
using tangram::testing::kernel_names;

cudaError_t launch(const void* kernel, dim3 grid, void** parameters) {
  if (executor != nullptr) executor({kernel_names().at(kernel), grid.x, grid.y, parameters});
  return count(counts.launches);
}

thread_local dim3 configured_grid;  // of the launch that comes next
thread_local int current_device = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

/// With the mutex held.
void spoil_captures() {
  if (is_captured && capture_mode != cudaStreamCaptureModeRelaxed) ++counts.spoiled_captures;
}

// Memory that ranks map, of the driver: it lies where its addresses were reserved. Threads of one process share it.
int create_memory(uint64_t* handle, size_t bytes, const void*, uint64_t) {
  *handle = bytes;
  const std::lock_guard lock(mutex);
  counts.mapped_bytes += static_cast<int64_t>(bytes);
  ++counts.allocations;
  return 0;
}
int reserve_addresses(uint64_t* address, size_t bytes, size_t, uint64_t, uint64_t) {
  *address = reinterpret_cast<uintptr_t>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  return 0;
}
int free_addresses(uint64_t address, size_t) {
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
int map_memory(uint64_t, size_t, size_t, uint64_t, uint64_t) { return 0; }
int unmap_memory(uint64_t, size_t) { return 0; }
int release_memory(uint64_t handle) {
  const std::lock_guard lock(mutex);
  counts.mapped_bytes -= static_cast<int64_t>(handle);
  ++counts.frees;
  return 0;
}
int allow_access(uint64_t, size_t, const void*, size_t) { return 0; }
int tell_granularity(size_t* bytes, const void*, int) {
  *bytes = 4096;
  return 0;
}
int refuse() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED
int do_nothing() { return 0; }

// A map of the counting runtime holds the address alone. Its other arguments stay where callers put them.
int encode_tensor_map(char* map, int, unsigned, void* address) {
  std::memset(map, 0, 128);
  std::memcpy(map, &address, sizeof(address));
  return 0;
}

void* driver_function(std::string_view name) {
  const std::pair<std::string_view, void*> functions[] = {
      {"cuMemCreate", reinterpret_cast<void*>(create_memory)},
      {"cuMemRelease", reinterpret_cast<void*>(release_memory)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve_addresses)},
      {"cuMemAddressFree", reinterpret_cast<void*>(free_addresses)},
      {"cuMemMap", reinterpret_cast<void*>(map_memory)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap_memory)},
      {"cuMemSetAccess", reinterpret_cast<void*>(allow_access)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(tell_granularity)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(refuse)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(refuse)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(encode_tensor_map)},
  };
  for (const auto& [known, function] : functions) {
    if (known == name) return function;
  }
  return reinterpret_cast<void*>(do_nothing);
}

}  // namespace

extern "C" {

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = size_t{1} << 37;
  return cudaSuccess;
}
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
  if (moves_large || bytes < kLarge) std::memcpy(to, from, bytes);
  return count(counts.copies);
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  if (moves_large || bytes < kLarge) std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) { return cudaMemsetAsync(data, value, bytes, nullptr); }
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t number,
                                 cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t stream) {
  for (size_t i = 0; i < number; ++i) cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDeviceToDevice, stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind, cudaStream_t) {
  return count(counts.copies);
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return count(counts.waits); }
cudaError_t cudaDeviceSynchronize() { return count(counts.waits); }

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* devices) {
  *devices = num_devices;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  *device = static_cast<int>(std::strtol(id + 5, nullptr, 16));
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(device);
  std::strcpy(properties->name, "counting");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return count(counts.device_queries);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    default: *value = 9;
  }
  return count(counts.device_queries);
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the counting runtime"; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return make_handle(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return make_handle(stream); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = *highest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = reinterpret_cast<uintptr_t>(stream) + (stream_generation << 32);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  make_handle(event);
  return count(counts.events);
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return count(counts.event_calls); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  if (launches.size() < parameter_bytes.size()) order += 'w';
  return count(counts.stream_waits);
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  count(counts.event_calls);
  return events_are_ready ? cudaSuccess : cudaErrorNotReady;
}
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
    bool dependent = false;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      dependent = dependent || (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                                config->attrs[i].val.programmaticStreamSerializationAllowed != 0);
    }
    order += dependent ? 'd' : 'l';
    launches.push_back({kernel, config->gridDim.x, {parameter, parameter + parameter_bytes[launches.size()]}});
  }
  return launch(kernel, config->gridDim, parameters);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = driver_function(name);
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
void __cudaRegisterFunction(void**, const char* stands_for, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
  kernel_names()[stands_for] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3, size_t, void*) {
  configured_grid = grid;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3*, size_t*, void*) {
  *grid = configured_grid;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(void** kernel, const void* stands_for) {
  *kernel = const_cast<void*>(stands_for);
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void* kernel, dim3 grid, dim3, void** parameters, size_t, cudaStream_t) {
  return launch(kernel, grid, parameters);
}

}  // extern "C"
