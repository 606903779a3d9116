// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "device_trace.hpp"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::bench {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

/// The part of CUPTI that is used.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
};
Cupti cupti;

// Buffers come back on a thread of CUPTI's.
std::mutex mutex;
std::vector<DeviceActivity> activities;

std::string readable(const char* mangled) {
  int status = 0;
  char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  constexpr std::string_view kNoName = "(anonymous namespace)::";
  for (size_t at = 0; (at = name.find(kNoName)) != std::string::npos;) name.erase(at, kNoName.size());
  name = name.substr(0, name.find('('));
  name = name.substr(0, name.find('<'));
  const size_t scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

void check(CUptiResult result, const char* what) {
  if (result != CUPTI_SUCCESS) throw NotAvailable(std::string(what) + " failed: " + std::to_string(result));
}

void add(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      activities.push_back({readable(kernel->name), kernel->streamId, kernel->start, kernel->end, 0});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      activities.push_back({"copy", copy->streamId, copy->start, copy->end, copy->bytes});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record);
      activities.push_back({"copy to peer", copy->streamId, copy->start, copy->end, copy->bytes});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      activities.push_back({"fill", fill->streamId, fill->start, fill->end, fill->bytes});
      break;
    }
    default: break;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cupti.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) add(record);
  std::free(buffer);
}

}  // namespace

DeviceTrace::DeviceTrace() {
  const char* const named = std::getenv("TANGRAM_CUPTI_LIBRARY");
  const char* const name = named != nullptr ? named : "libcupti.so.13";
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw NotAvailable(std::string("DeviceTrace: needs CUPTI (got ") + dlerror() + ")");
  const auto load = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) throw NotAvailable(std::string("DeviceTrace: CUPTI must have ") + symbol);
  };
  load(cupti.register_callbacks, "cuptiActivityRegisterCallbacks");
  load(cupti.enable, "cuptiActivityEnable");
  load(cupti.disable, "cuptiActivityDisable");
  load(cupti.flush_all, "cuptiActivityFlushAll");
  load(cupti.next_record, "cuptiActivityGetNextRecord");
  check(cupti.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
}

void DeviceTrace::start() {
  {
    const std::lock_guard lock(mutex);
    activities.clear();
  }
  for (const CUpti_ActivityKind kind : kKinds) check(cupti.enable(kind), "cuptiActivityEnable");
}

std::vector<DeviceActivity> DeviceTrace::stop() {
  check(cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  for (const CUpti_ActivityKind kind : kKinds) check(cupti.disable(kind), "cuptiActivityDisable");
  const std::lock_guard lock(mutex);
  std::vector<DeviceActivity> result = std::move(activities);
  activities.clear();
  std::ranges::sort(result, {}, &DeviceActivity::begin_ns);
  return result;
}

}  // namespace tangram::bench
